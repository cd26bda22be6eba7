"""Sources of endpoints side by side: one set per service, faults kept apart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection

import pytest
from tests.support.fake_plane import FakePlane
from tests.support.wait import patiently, until

from attnroute.discovery.base import (
    EndpointSet,
    EndpointSpec,
    FailureKind,
    Resolved,
    ResolveFailure,
)
from attnroute.discovery.sources import SourcePlan, Sources, SourceStatus


class Scripted:
    """A resolver that yields what is put in; an exception is raised, None ends it."""

    def __init__(self, name: str = "file") -> None:
        self.name = name
        self.steps: asyncio.Queue[Resolved | Exception | None] = asyncio.Queue()
        self.watches = 0

    def gives(self, *addresses: str) -> None:
        self.steps.put_nowait(EndpointSet(tuple(EndpointSpec(address) for address in addresses)))

    def fails(self, reason: str) -> None:
        self.steps.put_nowait(ResolveFailure(reason))

    async def watch(self) -> AsyncIterator[Resolved]:
        self.watches += 1
        while True:
            step = await self.steps.get()
            if step is None:
                return
            if isinstance(step, Exception):
                raise step
            yield step


class Events:
    """What was counted, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.kinds: list[FailureKind] = []
        self.stale: dict[str, bool] = {}

    def source_updated(self, service: str, source: str) -> None:
        self.seen.append(("updated", service, source))

    def source_failed(self, service: str, source: str, kind: FailureKind) -> None:
        self.seen.append(("failed", service, source))
        self.kinds.append(kind)

    def source_state(self, service: str, *, stale: bool) -> None:
        self.stale[service] = stale

    def source_gone(self, service: str, source: str) -> None:
        self.seen.append(("gone", service, source))


class World:
    def __init__(
        self, *services: str, own: Collection[str] = (), publish_interval_s: float = 0.0
    ) -> None:
        self.plane = FakePlane(*services)
        self.events = Events()
        self.changes = 0
        self.sources = Sources(
            self.plane,
            self.events,
            self._changed,
            own=own,
            restart_delay_s=0.0,
            publish_interval_s=publish_interval_s,
        )

    def _changed(self) -> None:
        self.changes += 1

    def addresses(self, service: str) -> list[str]:
        epoch, _ = self.plane.snapshot(service)
        _, listed = self.plane.endpoints(service)
        return [entry["address"] for entry in json.loads(listed)] if epoch else []


def plan(*resolvers: Scripted, identity: object = "same") -> SourcePlan:
    return SourcePlan(identity, lambda: resolvers)


async def test_sets_reach_the_data_plane() -> None:
    world, resolver = World("cart"), Scripted()
    world.sources.replace({"cart": plan(resolver)})
    resolver.gives("10.0.0.1:1", "10.0.0.2:1")
    await patiently(world.sources.first_answers(60), "the first answers")
    assert world.addresses("cart") == ["10.0.0.1:1", "10.0.0.2:1"]
    assert world.events.seen == [("updated", "cart", "file")]
    assert world.changes == 1
    await world.sources.close()


async def test_a_failure_keeps_the_set_and_its_reason() -> None:
    world, resolver = World("cart"), Scripted()
    world.sources.replace({"cart": plan(resolver)})
    resolver.gives("10.0.0.1:1")
    resolver.fails("no such file")
    await until(lambda: world.sources.status("cart").error, "the failure")
    assert world.addresses("cart") == ["10.0.0.1:1"]
    assert world.sources.status("cart") == SourceStatus("file", "no such file")
    resolver.gives("10.0.0.2:1")
    await until(lambda: not world.sources.status("cart").error, "the recovery")
    assert world.addresses("cart") == ["10.0.0.2:1"]
    assert [kind for kind, *_ in world.events.seen] == ["updated", "failed", "updated"]
    await world.sources.close()


async def test_an_empty_set_is_an_answer() -> None:
    world, resolver = World("cart"), Scripted()
    world.sources.replace({"cart": plan(resolver)})
    resolver.gives("10.0.0.1:1")
    resolver.gives()
    await until(lambda: len(world.events.seen) == 2, "both sets")
    assert world.addresses("cart") == []
    assert world.sources.status("cart").error == ""
    await world.sources.close()


async def test_a_set_the_data_plane_refuses_is_a_failure() -> None:
    world, resolver = World("cart"), Scripted()
    world.sources.replace({"cart": plan(resolver)})
    resolver.gives("10.0.0.1:1")
    await patiently(world.sources.first_answers(60), "the first answers")
    world.plane.refuse["cart"] = "3 endpoints, the limit is 2"
    resolver.gives("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1")
    await until(lambda: world.sources.status("cart").error, "the failure")
    assert world.sources.status("cart").error == "endpoints: 3 endpoints, the limit is 2"
    assert world.addresses("cart") == ["10.0.0.1:1"]
    await world.sources.close()


async def test_a_failure_counts_as_a_first_answer() -> None:
    world, resolver = World("cart"), Scripted()
    world.sources.replace({"cart": plan(resolver)})
    resolver.fails("no such file")
    await patiently(world.sources.first_answers(3600), "the first answers")
    await world.sources.close()


async def test_a_silent_source_does_not_hold_up_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, silent, quick = World("cart", "search"), Scripted(), Scripted()
    world.sources.replace({"cart": plan(silent), "search": plan(quick)})
    quick.gives("10.0.0.1:1")
    await until(lambda: world.addresses("search"), "the quick one")
    await patiently(world.sources.first_answers(0.01), "the end of the wait")
    assert "endpoint sources are slow" in caplog.text
    await world.sources.close()


async def test_an_unchanged_source_goes_on_and_a_changed_one_is_replaced() -> None:
    world = World("cart", "search")
    old, kept, new = Scripted("static"), Scripted(), Scripted()
    world.sources.replace({"cart": plan(old, identity="a"), "search": plan(kept, identity="s")})
    old.gives("10.0.0.1:1")
    kept.gives("10.0.0.7:1")
    await patiently(world.sources.first_answers(60), "the first answers")
    world.sources.replace(
        {"cart": plan(new, identity="b"), "search": plan(Scripted(), identity="s")}
    )
    # Until the new source has answered, the old set serves.
    assert world.addresses("cart") == ["10.0.0.1:1"]
    new.gives("10.0.0.2:1")
    kept.gives("10.0.0.8:1")
    await until(lambda: world.addresses("cart") == ["10.0.0.2:1"], "the new set")
    await until(lambda: world.addresses("search") == ["10.0.0.8:1"], "the kept source")
    assert kept.watches == 1
    assert ("gone", "cart", "static") in world.events.seen
    await world.sources.close()


async def test_a_service_that_goes_takes_its_source_along() -> None:
    world, resolver = World("cart"), Scripted()
    world.sources.replace({"cart": plan(resolver)})
    resolver.gives("10.0.0.1:1")
    await patiently(world.sources.first_answers(60), "the first answers")
    world.sources.replace({})
    assert world.events.seen[-1] == ("gone", "cart", "file")
    assert world.sources.status("cart") == SourceStatus("", "")
    before = set(asyncio.all_tasks())
    await world.sources.close()
    await until(lambda: len(asyncio.all_tasks() & before) <= 1, "the task to be gone")


async def test_a_resolver_that_breaks_is_started_again() -> None:
    world, resolver = World("cart"), Scripted()
    world.sources.replace({"cart": plan(resolver)})
    resolver.steps.put_nowait(RuntimeError("a fault of ours"))
    await until(lambda: world.sources.status("cart").error, "the failure")
    assert "a fault of ours" in world.sources.status("cart").error
    resolver.gives("10.0.0.1:1")
    await until(lambda: world.addresses("cart"), "the set after the restart")
    assert resolver.watches == 2
    await world.sources.close()


async def test_a_source_that_ends_keeps_its_set() -> None:
    world, resolver = World("cart"), Scripted("static")
    world.sources.replace({"cart": plan(resolver)})
    resolver.gives("10.0.0.1:1")
    resolver.steps.put_nowait(None)
    await until(resolver.steps.empty, "the end")
    await patiently(world.sources.first_answers(60), "the first answers")
    assert world.addresses("cart") == ["10.0.0.1:1"]
    assert world.sources.status("cart") == SourceStatus("static", "")
    await world.sources.close()


async def test_sets_of_several_sources_are_one_and_the_first_that_names_an_address_wins() -> None:
    world, static, dns = World("cart"), Scripted("static"), Scripted("dns")
    world.sources.replace({"cart": plan(static, dns)})
    static.steps.put_nowait(EndpointSet((EndpointSpec("10.0.0.1:1", 3.0, "eu-1a"),)))
    dns.gives("10.0.0.2:1", "10.0.0.1:1")
    await patiently(world.sources.first_answers(60), "the first answers")
    _, listed = world.plane.endpoints("cart")
    assert [(e["address"], e["static_weight"], e["zone"]) for e in json.loads(listed)] == [
        ("10.0.0.1:1", 3.0, "eu-1a"),
        ("10.0.0.2:1", 1.0, ""),
    ]
    assert world.sources.status("cart") == SourceStatus("static+dns", "")
    dns.gives("10.0.0.3:1")
    await until(lambda: world.addresses("cart") == ["10.0.0.1:1", "10.0.0.3:1"], "the change")
    await world.sources.close()


async def test_a_service_waits_for_the_first_answer_of_each_of_its_sources() -> None:
    world, quick, slow = World("cart"), Scripted("static"), Scripted("dns")
    world.sources.replace({"cart": plan(quick, slow)})
    quick.gives("10.0.0.1:1")
    await until(quick.steps.empty, "the quick one")
    await asyncio.sleep(0)
    assert world.addresses("cart") == []
    slow.fails("no answer")
    await patiently(world.sources.first_answers(60), "the first answers")
    assert world.addresses("cart") == ["10.0.0.1:1"]
    assert world.sources.status("cart") == SourceStatus("static+dns", "no answer")
    assert world.events.stale == {"cart": True}
    await world.sources.close()


async def test_a_source_that_fails_keeps_its_part_and_its_error_while_others_change() -> None:
    world, first, second = World("cart"), Scripted("file"), Scripted("dns")
    world.sources.replace({"cart": plan(first, second)})
    first.gives("10.0.0.1:1")
    second.gives("10.0.0.2:1")
    await patiently(world.sources.first_answers(60), "the first answers")
    second.steps.put_nowait(ResolveFailure("nothing there", "empty"))
    await until(lambda: world.sources.status("cart").error, "the failure")
    first.gives("10.0.0.7:1")
    await until(lambda: world.addresses("cart") == ["10.0.0.7:1", "10.0.0.2:1"], "the change")
    assert world.sources.status("cart") == SourceStatus("file+dns", "nothing there")
    assert (world.events.kinds, world.events.stale) == (["empty"], {"cart": True})
    second.gives("10.0.0.2:1")
    await until(lambda: not world.sources.status("cart").error, "the recovery")
    assert world.events.stale == {"cart": False}
    await world.sources.close()


async def test_a_burst_of_changes_costs_one_set() -> None:
    world, resolver = World("cart", publish_interval_s=0.2), Scripted()
    world.sources.replace({"cart": plan(resolver)})
    resolver.gives("10.0.0.1:1")
    await until(lambda: world.addresses("cart"), "the first set, at once")
    for number in range(2, 50):
        resolver.gives(f"10.0.0.{number}:1")
    await until(lambda: world.addresses("cart") == ["10.0.0.49:1"], "the last set")
    epoch, _ = world.plane.endpoints("cart")
    assert epoch == 2
    await world.sources.close()


async def test_a_failure_after_a_set_that_waits_leaves_the_error_on_display() -> None:
    world, resolver = World("cart", publish_interval_s=0.2), Scripted()
    world.sources.replace({"cart": plan(resolver)})
    resolver.gives("10.0.0.1:1")
    await until(lambda: world.addresses("cart"), "the first set")
    resolver.gives("10.0.0.2:1")
    resolver.fails("gone again")
    await until(lambda: world.addresses("cart") == ["10.0.0.2:1"], "the set that waited")
    assert world.sources.status("cart").error == "gone again"
    await world.sources.close()


async def test_a_set_with_an_address_of_this_process_is_refused() -> None:
    world, resolver = World("cart", own={"10.0.0.9:15001"}), Scripted()
    world.sources.replace({"cart": plan(resolver)})
    resolver.gives("10.0.0.1:1")
    await patiently(world.sources.first_answers(60), "the first answers")
    resolver.gives("10.0.0.2:1", "10.0.0.9:15001")
    await until(lambda: world.sources.status("cart").error, "the refusal")
    assert "`10.0.0.9:15001` is an address of this sidecar" in world.sources.status("cart").error
    assert (world.addresses("cart"), world.events.kinds) == (["10.0.0.1:1"], ["refused"])
    await world.sources.close()


async def test_a_refused_set_does_not_come_back_with_a_change_of_another_source() -> None:
    world, big, other = World("cart"), Scripted("file"), Scripted("dns")
    world.sources.replace({"cart": plan(big, other)})
    big.gives("10.0.0.1:1")
    other.gives("10.0.0.2:1")
    await patiently(world.sources.first_answers(60), "the first answers")
    world.plane.refuse["cart"] = "3 endpoints, the limit is 2"
    big.gives("10.0.0.8:1", "10.0.0.9:1")
    await until(lambda: world.sources.status("cart").error, "the refusal")
    other.gives("10.0.0.3:1")
    await until(lambda: world.addresses("cart") == ["10.0.0.1:1", "10.0.0.3:1"], "the change")
    assert "the limit is 2" in world.sources.status("cart").error
    await world.sources.close()


async def test_a_label_holds_the_zone_of_an_endpoint_that_names_none() -> None:
    world, resolver = World("cart"), Scripted()
    plans = {"cart": SourcePlan("same", lambda: [resolver], zone_label="topology/zone")}
    world.sources.replace(plans)
    labels = {"topology/zone": "eu-1a"}
    resolver.steps.put_nowait(
        EndpointSet(
            (
                EndpointSpec("10.0.0.1:1", labels=labels),
                EndpointSpec("10.0.0.2:1", zone="eu-1b", labels=labels),
                EndpointSpec("10.0.0.3:1"),
            )
        )
    )
    await patiently(world.sources.first_answers(60), "the first answers")
    _, listed = world.plane.endpoints("cart")
    assert [entry["zone"] for entry in json.loads(listed)] == ["eu-1a", "eu-1b", ""]
    await world.sources.close()
