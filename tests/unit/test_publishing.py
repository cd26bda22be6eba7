"""What is published when, and what gates make of it."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.bundles import make_bundle

from attnroute.bundle import describe, read
from attnroute.bundle.signature import load_public_key, load_signing_key, write_key_pair
from attnroute.clock import ManualClock
from attnroute.fleet.messages import ModelReport
from attnroute.publishing import Publisher, PublishRules, next_version
from attnroute.registry.store import Store
from attnroute.registry.types import ChannelState


class Events:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.moves: list[tuple[str, str, str]] = []
        self.leads: list[bool] = []

    def bundle_published(self, version: str) -> None:
        self.counts["published"] += 1

    def publish_refused(self, reason: str) -> None:
        self.counts[reason] += 1

    def channel_moved(self, channel: str, version: str, why: str) -> None:
        self.moves.append((channel, version, why))

    def publisher_leads(self, *, leads: bool) -> None:
        self.leads.append(leads)


class World:
    """Trainers at one directory, with a clock that is turned by hand."""

    def __init__(self, root: Path, rules: PublishRules | None = None) -> None:
        self.root = root
        self.store = Store(root)
        self.clock = ManualClock()
        self.rules = rules or PublishRules()
        self.one, self.events = self.trainer("one")

    def trainer(self, holder: str) -> tuple[Publisher, Events]:
        events = Events()
        publisher = Publisher(
            Store(self.root), "default", self.rules, self.clock, events, holder=holder, who=holder
        )
        publisher.prepare()
        return publisher, events

    def publish(self) -> str:
        self.clock.advance(60)
        return self.one.publish(make_bundle("0.0.0"))

    def channel(self, name: str = "canary") -> ChannelState:
        return self.store.channel("default", name)

    def freeze(self, channel: str) -> None:
        now = self.channel(channel)
        self.store.point(
            "default", channel, now.version, expected_generation=now.generation,
            reason="by hand", operator=True, frozen=True,
        )  # fmt: skip


def report(version: str, gain: float = 0.01, weight: float = 0.99, windows: int = 3) -> ModelReport:
    return ModelReport("default", version, gain, weight, windows, serving=False)


@pytest.mark.parametrize(
    ("newest", "same", "expected"),
    [("", True, "1.0.0"), ("1.0.0", True, "1.0.1"), ("1.4.9", True, "1.4.10"),
     ("1.4.9", False, "2.0.0")],
)  # fmt: skip
def test_versions(newest: str, same: bool, expected: str) -> None:  # noqa: FBT001
    assert next_version(newest, same_schema=same) == expected


def test_a_bundle_comes_to_the_canary_first(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.publish() == "1.0.0"
    assert world.publish() == "1.0.1"
    assert world.channel().version == "1.0.1"
    assert world.channel("stable").version == ""
    assert describe(tmp_path / "default" / "1.0.1").manifest.version == "1.0.1"
    assert world.events.moves == [
        ("canary", "1.0.0", "published"), ("canary", "1.0.1", "published"),
    ]  # fmt: skip
    assert world.events.counts == {"published": 2}


def test_another_schema_is_another_major_version(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.publish()
    world.clock.advance(60)
    assert world.one.publish(make_bundle(schema="another")) == "2.0.0"


def test_at_most_one_a_minute(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.publish()
    world.clock.advance(59)
    assert world.one.refusal() == "too_soon"
    assert world.one.publish(make_bundle()) == ""
    assert world.events.counts["too_soon"] == 1
    world.clock.advance(1)
    assert world.one.publish(make_bundle()) == "1.0.1"


def test_a_signature(tmp_path: Path) -> None:
    public = load_public_key(write_key_pair(tmp_path / "key"))
    clock = ManualClock(now_s=100)
    publisher = Publisher(
        Store(tmp_path / "m"), "default", PublishRules(), clock, Events(), holder="one",
        key=load_signing_key(tmp_path / "key"),
    )  # fmt: skip
    publisher.prepare()
    version = publisher.publish(make_bundle())
    path = tmp_path / "m" / "default" / version
    assert read(path, expected_schema=None, key=public).manifest.version == version


def test_old_bundles_go(tmp_path: Path) -> None:
    world = World(tmp_path, PublishRules(keep=3))
    for _ in range(6):
        version = world.publish()
    assert version == "1.0.5"
    assert world.store.versions("default") == ("1.0.5", "1.0.4", "1.0.3")


class TestTheSayOfGates:
    def test_promoted(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        version = world.publish()
        assert world.one.judge([]) == ""
        assert world.one.judge([report(version, windows=2)]) == ""
        assert world.one.judge([report("9.9.9")]) == ""
        assert world.one.judge([replace(report(version), name="other")]) == ""
        assert world.channel("stable").version == ""
        assert world.one.judge([report(version, gain=-0.001), report(version)]) == version
        stable = world.channel("stable")
        assert stable.version == version
        assert stable.reason.startswith("promoted by 2 gates: gain 0.00450")
        # There is nothing left to judge.
        assert world.one.judge([report(version, gain=-1, weight=0)]) == ""

    @pytest.mark.parametrize(
        "said",
        [
            [("gain", 0.0)],
            [("gain", -0.1), ("weight", 0.3)],
            [("gain", 0.5), ("weight", 0.04)],
        ],
    )
    def test_not_promoted(self, tmp_path: Path, said: list[tuple[str, float]]) -> None:
        world = World(tmp_path)
        version = world.publish()
        bad = replace(report(version), **dict(said))  # type: ignore[arg-type]
        assert world.one.judge([bad, report(version, gain=0.0)]) == ""
        assert world.channel("stable").version == ""

    def test_enough_gates(self, tmp_path: Path) -> None:
        world = World(tmp_path, PublishRules(reports=3, windows=5))
        version = world.publish()
        said = [report(version, windows=5)] * 2
        assert world.one.judge([*said, report(version, windows=4)]) == ""
        assert world.one.judge([*said, report(version, windows=5)]) == version

    def test_taken_back(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        first = world.publish()
        assert world.one.judge([report(first)]) == first
        bad = world.publish()
        assert world.one.judge([report(bad, gain=-0.5, weight=0.0)]) == first
        assert world.channel().version == first
        assert world.channel("stable").version == first
        assert world.events.moves[-1] == ("canary", first, "taken")

    def test_the_first_has_nothing_to_be_taken_back_to(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        bad = world.publish()
        assert world.one.judge([report(bad, gain=-0.5, weight=0.0)]) == ""
        assert world.channel().version == bad

    def test_without_a_trial(self, tmp_path: Path) -> None:
        world = World(tmp_path, PublishRules(first="stable"))
        version = world.publish()
        assert world.channel("stable").version == version
        assert world.one.judge([report(version)]) == ""


class TestFrozen:
    def test_the_canary(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        version = world.publish()
        world.freeze("canary")
        assert world.publish() == ""
        assert world.events.counts["frozen"] == 1
        # Nothing was written that nobody points at.
        assert world.store.versions("default") == (version,)

    def test_stable(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        first = world.publish()
        world.one.judge([report(first)])
        world.freeze("stable")
        second = world.publish()
        assert world.one.judge([report(second)]) == ""
        assert world.channel("stable").version == first


class TestTwoTrainers:
    def test_one_publishes_and_the_other_is_told(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        two, events = world.trainer("two")
        assert world.publish() == "1.0.0"
        assert two.publish(make_bundle()) == ""
        assert events.counts == {"follower": 1}
        assert events.leads == [False]
        assert two.judge([report("1.0.0")]) == ""
        assert world.channel("stable").version == ""

    def test_the_other_takes_over(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        two, events = world.trainer("two")
        world.publish()
        assert not two.renew()
        world.clock.advance(16)
        assert two.publish(make_bundle()) == "1.0.1"
        assert events.leads == [False, True]
        # The first was only slow. It is told, and nothing of it is published.
        assert world.publish() == ""
        assert world.events.counts["follower"] == 1
        assert world.channel().version == "1.0.1"

    def test_one_that_leaves_is_followed_at_once(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        two, _ = world.trainer("two")
        world.publish()
        assert not two.renew()
        world.one.close()
        assert two.publish(make_bundle()) == "1.0.1"

    def test_an_operator_was_faster(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        first = world.publish()
        world.one.judge([report(first)])
        second = world.publish()

        class Slow(Store):
            """Somebody moves the channel between the look and the move."""

            def channel(self, name: str, channel: str) -> ChannelState:
                state = super().channel(name, channel)
                if channel == "stable" and state.generation == 1:
                    self.moved = Store(self.root).point(
                        name, channel, first, expected_generation=1, reason="by hand",
                        operator=True,
                    )  # fmt: skip
                return state

        slow, events = world.trainer("one")
        slow.renew()
        slow._store = Slow(tmp_path)
        assert slow.judge([report(second)]) == ""
        assert events.counts["conflict"] == 1
        assert world.channel("stable").reason == "by hand"


def test_a_directory_that_takes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.publish() == "1.0.0"
    shutil.rmtree(tmp_path / "default")
    (tmp_path / "default").write_text("a file where a directory should be")
    assert world.publish() == ""
    assert world.events.counts["follower"] + world.events.counts["disk"] == 1
    (tmp_path / "default").unlink()
    world.one.prepare()
    assert world.publish() == "1.0.0"
