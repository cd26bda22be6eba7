"""The emulated worlds: arithmetic against hand-computed values, and what makes each one fair."""

from __future__ import annotations

import math

import pytest

from attnroute.demo.world import WORLDS, EndpointModel, RequestClass, Timeline, Weather, World

TINY = World(
    name="tiny",
    summary="",
    endpoints=(EndpointModel(speed=1.0, group=0), EndpointModel(speed=2.0, group=1)),
    classes=(
        RequestClass("Own", 100, popularity=0.5, cost=1.0, group=1),
        RequestClass("Any", 100, popularity=0.5, cost=1.0),
    ),
    mean_work_s=0.013,
)


def test_work_by_hand() -> None:
    # Relative costs: Own 1 and 1/4, Any 1 and 1; their mean is 0.8125, so one unit is 16 ms.
    work_ms = [[1e3 * TINY.work_s(k, i) for i in range(2)] for k in range(2)]
    assert work_ms == [pytest.approx([16, 4]), pytest.approx([16, 16])]


def test_capacity_by_hand() -> None:
    # Two workers each: 2 / 16 ms, and at twice the speed 4 / 10 ms.
    assert TINY.capacity_per_s == pytest.approx(125 + 400)
    assert TINY.calls_per_s == pytest.approx(0.7 * 525)


def test_slow_endpoints_are_those_below_the_mean_speed() -> None:
    assert TINY.slow_endpoints == {0}
    assert WORLDS["affinity"].slow_endpoints == frozenset()
    assert WORLDS["noisy"].slow_endpoints == {8, 9, 10, 11}


def test_weather_averages_its_spells() -> None:
    assert Weather(slow_speed=0.2, slow_s=1.0, normal_s=3.0).mean_speed == pytest.approx(0.8)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
class TestEveryWorld:
    def test_popularities_sum_to_one(self, world: World) -> None:
        assert sum(k.popularity for k in world.classes) == pytest.approx(1.0)

    def test_mean_work_is_what_it_says(self, world: World) -> None:
        count = len(world.endpoints)
        mean_s = sum(world.mean_work_of_endpoint_s(i) for i in range(count)) / count
        assert mean_s == pytest.approx(world.mean_work_s)

    def test_in_turn_overloads_no_endpoint(self, world: World) -> None:
        # Else the queues of round_robin would grow for as long as a slice lasts, and its figures
        # would measure the length of the slices.
        each_per_s = world.calls_per_s / len(world.endpoints)
        for index, endpoint in enumerate(world.endpoints):
            work_per_s = each_per_s * world.mean_work_of_endpoint_s(index)
            assert work_per_s / (endpoint.workers * endpoint.mean_speed) < 0.97

    def test_load_suits_a_small_machine(self, world: World) -> None:
        assert 250 <= world.calls_per_s <= 500

    def test_path_and_size_tell_the_class(self, world: World) -> None:
        assert len(world.class_of) == len(world.classes)


class TestTimeline:
    def test_constant_speed(self) -> None:
        steady = Timeline(EndpointModel(speed=2.0), "any")
        assert steady.finish_s(3.0, 1.0) == pytest.approx(3.5)

    def test_work_in_slow_spells_takes_longer(self) -> None:
        weather = Weather(slow_speed=0.25, slow_s=1.0, normal_s=1.0)
        timeline = Timeline(EndpointModel(weather=weather), "some key")
        spells = [timeline._spell(index) for index in range(6)]
        assert {speed for _, speed in spells} == {0.25, 1.0}
        end_s = spells[5][0]
        starts_s = [0.0, *(end for end, _ in spells)]
        work_s = sum(
            (end - start) * speed for start, (end, speed) in zip(starts_s, spells, strict=False)
        )
        # All the work that fits into six spells ends with the sixth, whatever their lengths.
        assert timeline.finish_s(0.0, work_s) == pytest.approx(end_s)

    def test_work_split_in_two_ends_at_the_same_time(self) -> None:
        timeline = Timeline(EndpointModel(weather=Weather()), "7")
        half_s = timeline.finish_s(1.0, 4.0)
        assert timeline.finish_s(half_s, 4.0) == pytest.approx(timeline.finish_s(1.0, 8.0))

    def test_same_key_same_weather(self) -> None:
        noisy = EndpointModel(weather=Weather())
        ends_s = [Timeline(noisy, key).finish_s(0.0, 30.0) for key in ("a", "a", "b")]
        assert ends_s[0] == ends_s[1] != ends_s[2]

    def test_speed_averages_to_the_mean_speed(self) -> None:
        noisy = EndpointModel(speed=2.0, weather=Weather())
        total_s = Timeline(noisy, "long").finish_s(0.0, 50_000.0)
        assert math.isclose(50_000.0 / total_s, noisy.mean_speed, rel_tol=0.03)
