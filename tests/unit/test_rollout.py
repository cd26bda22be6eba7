"""From a bundle to the model that serves, and back."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import pytest
from tests.support.facts import facts
from tests.support.models import score, small_bundle, with_graph
from tests.support.wait import patience_s, until

from attnroute.bundle import Bundle
from attnroute.clock import ManualClock
from attnroute.rollout import Rollout, RolloutError, RolloutPlan, Standing
from attnroute.scoring.arbiter import Arbiter
from attnroute.scoring.attention import Model
from attnroute.scoring.base import ScoringInput
from attnroute.scoring.worker import ScoringWorker

KNOWN = facts()
ROWS, COLUMNS = np.indices(KNOWN.table.cost_s.shape)
CELLS = (ROWS.ravel(), COLUMNS.ravel())
MEANS_S = np.broadcast_to(KNOWN.table.class_mean_s[:, None], KNOWN.table.cost_s.shape)[CELLS]
TABLE_S = KNOWN.table.cost_s[CELLS]
GIVEN = ScoringInput(
    classes=KNOWN.classes, endpoints=KNOWN.endpoints, table_cost_s=KNOWN.table.cost_s,
    calls=KNOWN.sums.den, mean_service_s=KNOWN.table.mean_service_s,
    endpoint_factor=KNOWN.table.endpoint_factor, class_mean_s=KNOWN.table.class_mean_s,
    rtt_s=KNOWN.rtt_s, concurrency=KNOWN.concurrency, usable=KNOWN.usable, facts=KNOWN,
)  # fmt: skip
QUICK = RolloutPlan(min_interval_s=0.0, run_limit_s=1e3, budget_s=patience_s())


class World:
    """A rollout and its services, tick by tick."""

    def __init__(self, plan: RolloutPlan = QUICK, make: Callable[..., Model] | None = None) -> None:
        self.clock = ManualClock()
        self.rollout = Rollout(self.clock, ScoringWorker(), **({"make": make} if make else {}))
        self.rollout.plan = plan
        self.arbiters: dict[str, Arbiter] = {}
        self.now_s = 0.0
        self.add("cart")

    def add(self, service: str) -> None:
        self.arbiters[service] = Arbiter()
        self.rollout.attach(service, self.arbiters[service])

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.rollout.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        self.rollout.close()

    def tick(self, means_s: np.ndarray = MEANS_S, service: str = "cart", count: int = 1) -> None:
        """A second in which calls took so long as those, on the mean."""
        for _ in range(count):
            arbiter = self.arbiters[service]
            arbiter.blend(GIVEN, self.now_s)
            calls = np.full(len(CELLS[0]), 10.0)
            arbiter.judge(calls, calls * means_s, TABLE_S, CELLS)
            self.rollout.step()
            self.now_s += 1.0
            self.clock.advance(1.0)

    async def offer(self, made: Bundle, sha256: str = "") -> str:
        """Offers a bundle and waits for what becomes of it first."""
        name = sha256 or made.manifest.version
        self.rollout.offer(made, name)
        await until(lambda: any(one.sha256 == name for one in self.history), "a look at it")
        await until(lambda: self.stage(name) != "loading", "the end of its loading")
        return self.stage(name)

    @property
    def history(self) -> tuple[Standing, ...]:
        return self.rollout.state().history

    def stage(self, sha256: str) -> str:
        return next(one.stage for one in self.history if one.sha256 == sha256)

    def reason(self, sha256: str) -> str:
        return next(one.reason for one in self.history if one.sha256 == sha256)

    def serving(self) -> str:
        serving = self.rollout.state().serving
        return "" if serving is None else serving.standing.version

    def model(self, service: str = "cart") -> str:
        """What the arbiter names as in force."""
        return self.arbiters[service].blend(GIVEN, self.now_s).model


GOOD = -1.0  # the class's mean, which is what calls take in `tick`
BAD = 1.0


async def test_the_first_bundle_serves_at_once() -> None:
    async with World() as world:
        assert world.model() == ""
        assert await world.offer(small_bundle("1.0.0", GOOD)) == "serving"
        assert world.model() == "attention-1.0.0"
        (seat,) = world.arbiters["cart"].seats
        assert (seat.say, seat.gate.gd) == (1.0, 0.0)
        world.add("shop")
        assert world.model("shop") == "attention-1.0.0"
        world.rollout.detach("shop")
        assert world.arbiters["shop"].seats == []


async def test_a_later_one_is_judged_then_a_canary_then_serves() -> None:
    async with World() as world:
        await world.offer(small_bundle("1.0.0", 0.0))
        assert await world.offer(small_bundle("1.1.0", GOOD)) == "shadow"
        world.tick(count=2)
        assert world.stage("1.1.0") == "shadow"
        assert world.model() == "attention-1.0.0"
        world.tick()
        assert world.stage("1.1.0") == "canary"
        shadow, canary = world.arbiters["cart"].seats
        assert (shadow.say, canary.say) == (1.0, 0.2)
        blended = world.arbiters["cart"].blend(GIVEN, world.now_s)
        share = 0.2 * canary.weight
        np.testing.assert_allclose(
            blended.cost_s[CELLS], TABLE_S ** (1 - share) * MEANS_S**share, rtol=1e-5
        )
        world.tick(count=3)
        assert (world.stage("1.1.0"), world.stage("1.0.0")) == ("serving", "retired")
        assert world.model() == "attention-1.1.0"
        # What its gate reached goes on counting.
        assert world.arbiters["cart"].seats == [canary]
        assert canary.say == 1.0
        assert canary.weight > 0.9


async def test_one_that_is_worse_is_refused_and_what_served_goes_on() -> None:
    async with World() as world:
        await world.offer(small_bundle("1.0.0", GOOD))
        await world.offer(small_bundle("1.1.0", BAD))
        world.tick(count=3)
        assert world.stage("1.1.0") == "refused"
        assert "worse than the table at `cart`" in world.reason("1.1.0")
        assert world.serving() == "1.0.0"
        assert len(world.arbiters["cart"].seats) == 1
        assert world.rollout.state().ends == {("refused", "gate"): 1}
        # It does not come again by itself.
        world.rollout.offer(small_bundle("1.1.0", BAD), "1.1.0")
        assert world.rollout.state().waiting == ""


async def test_one_that_is_no_better_is_refused_in_the_end() -> None:
    async with World(replace(QUICK, judge_limit_s=30.0)) as world:
        await world.offer(small_bundle("1.0.0", GOOD))
        assert await world.offer(small_bundle("1.1.0", 0.0)) == "shadow"
        world.tick(count=30)
        assert world.stage("1.1.0") == "shadow"
        world.tick(count=2)
        assert (world.stage("1.1.0"), world.reason("1.1.0")) == ("refused", "no gain after 30 s")


async def test_worse_at_one_service_is_enough_to_be_refused() -> None:
    async with World() as world:
        world.add("shop")
        await world.offer(small_bundle("1.0.0", 0.0))
        await world.offer(small_bundle("1.1.0", GOOD))
        for _ in range(3):
            world.tick(TABLE_S, "shop")
            world.tick()
        assert world.stage("1.1.0") == "refused"
        assert "`shop`" in world.reason("1.1.0")


async def test_gates_tell_who_moves_channels_what_they_judge_and_what_they_ended() -> None:
    async with World() as world:
        assert world.rollout.verdicts("cart") == []
        await world.offer(small_bundle("1.0.0", GOOD))
        world.tick(count=2)
        (good,) = world.rollout.verdicts("cart")
        (seat,) = world.arbiters["cart"].seats
        assert (good.name, good.version, good.windows) == ("default", "1.0.0", 2)
        assert (good.gain, good.weight, good.serving) == (seat.gate.gd, seat.weight, True)
        await world.offer(small_bundle("1.1.0", BAD))
        world.tick()
        _, shadow = world.rollout.verdicts("cart")
        assert (shadow.version, shadow.windows, shadow.serving) == ("1.1.0", 1, False)
        assert shadow.gain < 0
        world.tick(count=5)
        # Its gate is gone after three windows, but not what it said.
        good, bad = world.rollout.verdicts("cart")
        assert (good.version, good.windows) == ("1.0.0", 8)
        assert (bad.version, bad.windows, bad.weight, bad.serving) == ("1.1.0", 3, 0.0, False)
        assert bad.gain < shadow.gain
        # What an operator ends, or what is overtaken, is not the bundle's fault.
        await world.offer(small_bundle("1.2.0", GOOD))
        world.tick()
        await world.offer(small_bundle("1.3.0", 0.0))
        told = [one.version for one in world.rollout.verdicts("cart")]
        assert told == ["1.0.0", "1.3.0", "1.1.0"]
        world.rollout.detach("cart")
        assert world.rollout.verdicts("cart") == []


async def test_the_gate_of_a_service_that_gained_is_told_as_it_was() -> None:
    async with World() as world:
        world.add("shop")
        await world.offer(small_bundle("1.0.0", 0.0))
        await world.offer(small_bundle("1.1.0", GOOD))
        for _ in range(3):
            world.tick(TABLE_S, "shop")
            world.tick()
        assert world.stage("1.1.0") == "refused"
        (_, cart), (_, shop) = world.rollout.verdicts("cart"), world.rollout.verdicts("shop")
        assert cart.gain > 0
        assert cart.weight > 0.9
        assert shop.gain < 0
        assert shop.weight == 0.0
        world.rollout.stop()
        assert world.rollout.verdicts("shop") == []


async def test_what_turns_bad_gives_way_to_what_was_before() -> None:
    async with World(replace(QUICK, canary=0.0)) as world:
        await world.offer(small_bundle("1.0.0", 0.0))
        await world.offer(small_bundle("1.1.0", GOOD))
        world.tick(count=3)
        assert world.serving() == "1.1.0"  # without a canary stage
        world.tick(TABLE_S, count=3)
        assert world.serving() == "1.0.0"
        assert world.stage("1.1.0") == "rolled_back"
        assert world.rollout.state().ends == {("rolled_back", "gate"): 1}
        # There is none before it: it stays, with next to no weight.
        world.tick(count=3)
        assert world.serving() == "1.0.0"


async def test_a_fall_without_another_to_go_back_to_leaves_the_gate_at_work() -> None:
    async with World() as world:
        await world.offer(small_bundle("1.0.0", GOOD))
        world.tick(TABLE_S, count=5)
        assert world.serving() == "1.0.0"
        assert world.arbiters["cart"].seats[0].weight < 1e-6
        assert world.model() == ""
        world.tick(count=40)
        assert world.model() == "attention-1.0.0"


async def test_values_that_cannot_be_true_end_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    made: list[Model] = []

    def make(bundle: Bundle, plan: RolloutPlan) -> Model:
        made.append(Model(bundle, int8=plan.int8))
        return made[-1]

    async with World(replace(QUICK, canary=0.0), make) as world:
        await world.offer(small_bundle("1.0.0", 0.0))
        await world.offer(small_bundle("1.1.0", GOOD))
        world.tick(count=3)
        assert world.serving() == "1.1.0"
        found = made[-1].score
        made[-1].score = lambda inputs: {  # type: ignore[method-assign]
            name: value * np.nan for name, value in found(inputs).items()
        }
        world.tick(count=3)
        assert world.serving() == "1.0.0"
        assert world.rollout.state().ends == {("rolled_back", "errors"): 1}
        *_, broken = world.rollout.verdicts("cart")
        assert (broken.version, broken.weight) == ("1.1.0", 0.0)
        await world.offer(small_bundle("1.2.0", GOOD))

        def no(_: object) -> object:
            raise RuntimeError("no")

        made[-1].score = no  # type: ignore[method-assign,assignment]
        world.tick(count=3)
        assert world.stage("1.2.0") == "refused"
        assert world.rollout.state().ends[("refused", "errors")] == 1


async def test_runs_that_miss_their_ticks_end_it() -> None:
    made: list[Model] = []
    go_on = threading.Event()

    def make(bundle: Bundle, plan: RolloutPlan) -> Model:
        made.append(Model(bundle, int8=plan.int8))
        return made[-1]

    async with World(make=make) as world:
        await world.offer(small_bundle("1.0.0", 0.0))
        found = made[0].score

        def hang(inputs: object) -> object:
            assert go_on.wait(patience_s())
            return found(inputs)  # type: ignore[arg-type]

        made[0].score = hang  # type: ignore[method-assign,assignment]
        world.rollout.state().serving.scorers["cart"]._budget_s = 0.0  # type: ignore[union-attr]
        world.tick(count=5)
        assert world.serving() == "1.0.0"
        world.tick()
        assert world.serving() == ""
        assert world.rollout.state().ends == {("rolled_back", "slow"): 1}
        assert world.model() == ""
        go_on.set()


BROKEN = [
    (small_bundle("1.1.0", change=with_graph("score.onnx", b"no")), "does not take `score.onnx`"),
    (small_bundle("1.1.0", change=with_graph("score.onnx", score(np.nan))), "not finite"),
    (small_bundle("1.1.0", change=with_graph("score.onnx", score(0.5))), "is off by"),
]


@pytest.mark.parametrize(("bundle", "problem"), BROKEN)
async def test_what_does_not_do_what_it_should_is_refused_before_it_has_a_seat(
    bundle: Bundle, problem: str
) -> None:
    async with World() as world:
        await world.offer(small_bundle("1.0.0", GOOD))
        assert await world.offer(bundle) == "refused"
        assert problem in world.reason("1.1.0")
        assert world.serving() == "1.0.0"
        assert len(world.arbiters["cart"].seats) == 1
        assert world.rollout.state().ends == {("refused", "invalid"): 1}
        assert await world.offer(small_bundle("1.2.0", GOOD)) == "shadow"


async def test_a_model_whose_runs_cost_too_much_is_refused() -> None:
    async with World(replace(QUICK, run_limit_s=1e-9)) as world:
        assert await world.offer(small_bundle("1.0.0")) == "refused"
        assert "`model.run_limit` allows" in world.reason("1.0.0")
        assert world.rollout.state().ends == {("refused", "slow"): 1}


async def test_a_model_that_does_not_become_ready_is_given_up() -> None:
    go_on, began = threading.Event(), threading.Event()

    def make(bundle: Bundle, plan: RolloutPlan) -> Model:
        began.set()
        assert go_on.wait(patience_s())
        return Model(bundle, int8=plan.int8)

    async with World(make=make) as world:
        world.rollout.offer(small_bundle("1.0.0"), "1.0.0")
        await until(began.is_set, "the begin of its loading")
        assert world.stage("1.0.0") == "loading"
        world.clock.advance(61.0)
        await until(lambda: world.stage("1.0.0") == "refused", "its end")
        assert world.reason("1.0.0") == "it is not ready after 60 s"
        world.rollout.offer(small_bundle("1.0.1"), "1.0.1")
        await until(lambda: world.history[0].version == "1.0.1", "its turn")
        world.clock.advance(61.0)
        await until(lambda: world.stage("1.0.1") == "refused", "its end: the thread is taken")
        go_on.set()
        assert await world.offer(small_bundle("1.0.2")) == "serving"


async def test_at_most_one_bundle_in_a_while_and_the_newest_of_them() -> None:
    async with World(replace(QUICK, min_interval_s=60.0)) as world:
        await world.offer(small_bundle("1.0.0"))
        world.rollout.offer(small_bundle("1.1.0"), "1.1.0")
        world.rollout.offer(small_bundle("1.2.0"), "1.2.0")
        await asyncio.sleep(0)
        assert world.rollout.state().waiting == "1.2.0"
        assert [one.version for one in world.history] == ["1.0.0"]
        world.clock.advance(61.0)
        assert await world.offer(small_bundle("1.3.0")) == "shadow"
        assert [one.version for one in world.history] == ["1.3.0", "1.0.0"]


async def test_a_newer_candidate_takes_the_place_of_one_that_is_judged() -> None:
    async with World() as world:
        await world.offer(small_bundle("1.0.0"))
        await world.offer(small_bundle("1.1.0", GOOD))
        await world.offer(small_bundle("1.2.0", GOOD))
        assert (world.stage("1.1.0"), world.stage("1.2.0")) == ("refused", "shadow")
        assert len(world.arbiters["cart"].seats) == 2


async def test_an_operator_promotes_rolls_back_and_freezes() -> None:
    async with World() as world:
        with pytest.raises(RolloutError, match="the model in shadow or canary is none"):
            world.rollout.promote("")
        with pytest.raises(RolloutError, match="no model serves"):
            world.rollout.roll_back()
        await world.offer(small_bundle("1.0.0"))
        await world.offer(small_bundle("1.1.0", 0.0))
        with pytest.raises(RolloutError, match=r"cannot promote `9.9.9`: .* is `1.1.0`"):
            world.rollout.promote("9.9.9")
        assert world.rollout.promote("1.1.0").stage == "serving"
        assert world.serving() == "1.1.0"
        assert world.rollout.roll_back().version == "1.1.0"
        assert world.serving() == "1.0.0"
        world.rollout.freeze(True)
        world.rollout.offer(small_bundle("1.2.0", GOOD), "1.2.0")
        await asyncio.sleep(0)
        assert world.rollout.state().waiting == "1.2.0"
        world.rollout.freeze(False)
        await until(lambda: world.history[0].stage == "shadow", "its turn")
        world.rollout.freeze(True)
        world.tick(count=5)
        assert world.stage("1.2.0") == "shadow"
        world.rollout.freeze(False)
        world.tick()
        assert world.stage("1.2.0") == "canary"
        world.rollout.roll_back()
        assert world.serving() == ""
        assert world.stage("1.2.0") == "canary"


async def test_a_channel_that_is_moved_back_has_what_served_before_serve_at_once() -> None:
    async with World() as world:
        await world.offer(small_bundle("1.0.0"))
        await world.offer(small_bundle("1.1.0"))
        world.rollout.promote("")
        world.rollout.offer(small_bundle("1.0.0"), "1.0.0")
        assert (world.serving(), world.stage("1.1.0")) == ("1.0.0", "rolled_back")
        assert world.rollout.state().ends == {("rolled_back", "channel"): 1}


async def test_without_a_model_in_the_policy_none_is_left_and_the_next_serves_at_once() -> None:
    async with World() as world:
        await world.offer(small_bundle("1.0.0"))
        await world.offer(small_bundle("1.1.0"))
        world.rollout.stop()
        assert world.arbiters["cart"].seats == []
        assert await world.offer(small_bundle("1.1.0")) == "serving"


def test_what_could_not_be_read_is_remembered() -> None:
    world = World()
    world.rollout.refuse("1.4.0", "it has opset 23")
    assert [(one.version, one.stage, one.reason) for one in world.history] == [
        ("1.4.0", "refused", "it has opset 23")
    ]
    assert world.rollout.state().ends == {("refused", "invalid"): 1}


def rss_mib() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def test_five_hundred_swaps_leave_memory_where_twenty_did() -> None:
    world, made = World(), small_bundle("1.0.0")
    after_20 = 0.0
    for number in range(500):
        version = f"1.{number}.0"
        bundle = replace(made, manifest=replace(made.manifest, version=version))
        await world.rollout._take(bundle, version)
        if number:
            world.rollout.promote(version)
        world.arbiters["cart"].blend(GIVEN, world.now_s)
        if number == 19:
            after_20 = rss_mib()
    assert world.serving() == "1.499.0"
    # One that is kept costs 0.3 MiB or so: 480 of them would be 140.
    grown = rss_mib() - after_20
    assert grown < 30.0
    world.rollout.close()
