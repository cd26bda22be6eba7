"""The scorers of a sidecar beside the table, put together: bundles and their rollout, plug-ins.

`prepare` reads what a policy names and changes nothing; `use` brings it into force and cannot fail,
so that a reload stays all or nothing. Services come and go by `attach` and `detach`, as the tick
configures them.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from attnroute.bundle import BundleLimits
from attnroute.bundle.signature import load_public_key
from attnroute.clock import Clock
from attnroute.errors import BundleError, PolicyError, Problem
from attnroute.features.schema import schema_hash
from attnroute.fleet.messages import ModelReport
from attnroute.policy.load import LoadedPolicy
from attnroute.policy.model import Model
from attnroute.registry.client import (
    BundleSource,
    DirectorySource,
    RegistrySource,
    SourceEvents,
    Trust,
)
from attnroute.rollout import Rollout, RolloutPlan, ScorersState, seat_state
from attnroute.scoring.arbiter import Arbiter, Seat
from attnroute.scoring.base import Scorer
from attnroute.scoring.beside import BesideScorer
from attnroute.scoring.plugins import PluginError, installed, make_scorer
from attnroute.scoring.worker import ScoringWorker

__all__ = ["Prepared", "Scorers"]

PLUGIN_BUDGET_S = 0.05
"""How long a tick waits for a plug-in's run."""


class ScorerEvents(SourceEvents, Protocol):
    """What is counted."""


@dataclass(frozen=True)
class _Origin:
    """Where bundles come from; another one is another source."""

    registry: str | None
    directory: Path | None
    name: str
    channel: str
    key: Path | None
    max_bytes: int
    cache: Path | None


@dataclass(frozen=True)
class Prepared:
    """What a policy wants, read and checked."""

    origin: _Origin | None
    trust: Trust
    plan: RolloutPlan
    plugins: Mapping[str, Mapping[str, Scorer]]
    """By service and name: new ones, and those that stay."""


@dataclass
class _Service:
    arbiter: Arbiter
    seats: dict[str, Seat] = field(default_factory=dict)


class Scorers:
    """Made and used on one event loop."""

    def __init__(self, clock: Clock, events: ScorerEvents) -> None:
        self._clock = clock
        self._events = _Heard(self, events)
        # A plug-in that hangs must not take the model with it, nor the other way round.
        self._worker = ScoringWorker()
        self._plugin_worker = ScoringWorker("attnroute-plugin")
        self.rollout = Rollout(clock, self._worker)
        self._services: dict[str, _Service] = {}
        self._plugins: Mapping[str, Mapping[str, Scorer]] = {}
        self._origin: _Origin | None = None
        self._source: BundleSource | None = None
        self._following: asyncio.Task[None] | None = None
        self._temporary: Path | None = None

    # --- the policy ------------------------------------------------------------------------------

    def prepare(self, loaded: LoadedPolicy) -> Prepared:
        """Reads what the policy names; blocks on files. Raises PolicyError."""
        model = loaded.policy.model
        problems: list[Problem] = []
        key = None
        origin = None
        if model is not None:
            origin = _origin(model, loaded)
            if origin.key is not None:
                try:
                    key = load_public_key(origin.key)
                except BundleError as error:
                    line, column = loaded.position(("model", "public_key"))
                    problems.append(Problem(str(loaded.path), line, column, str(error)))
        plugins = self._prepared_plugins(loaded, problems)
        if problems:
            raise PolicyError(problems)
        limits = BundleLimits() if model is None else BundleLimits(model.max_bytes)
        return Prepared(origin, Trust(schema_hash(), limits, key), _plan(model), plugins)

    def _prepared_plugins(
        self, loaded: LoadedPolicy, problems: list[Problem]
    ) -> Mapping[str, Mapping[str, Scorer]]:
        found: dict[str, dict[str, Scorer]] = {}
        offered = None
        for name, service in loaded.policy.services.items():
            for index, wanted in enumerate(service.scorers):
                known = self._plugins.get(name, {}).get(wanted)
                offered = installed() if offered is None else offered
                try:
                    scorer = known or make_scorer(wanted, name, offered)
                except PluginError as error:
                    line, column = loaded.position(("services", name, "scorers", index))
                    problems.append(Problem(str(loaded.path), line, column, str(error)))
                else:
                    found.setdefault(name, {})[wanted] = scorer
        return found

    async def use(self, prepared: Prepared) -> None:
        """Brings it into force; what stays is not touched."""
        self._plugins = prepared.plugins
        for name in self._services:
            self._seat_plugins(name)
        self.rollout.plan = prepared.plan
        if prepared.origin == self._origin:
            return
        await self._stop_following()
        self._origin = prepared.origin
        if prepared.origin is None:
            self.rollout.stop()
            return
        self._source = await self._source_of(prepared.origin, prepared.trust)
        self._following = asyncio.create_task(self._follow(self._source))

    async def _source_of(self, origin: _Origin, trust: Trust) -> BundleSource:
        """Made on the loop, to which the channel of a registry belongs."""
        if origin.directory is not None:
            root, name = origin.directory.parent, origin.directory.name
            return DirectorySource(root, name, origin.channel, trust, self._events)
        assert origin.registry is not None, "the policy's rules let one of both through"
        cache = origin.cache
        if cache is None:
            if self._temporary is None:
                made = await asyncio.to_thread(tempfile.mkdtemp, prefix="attnroute-models-")
                self._temporary = Path(made)
            cache = self._temporary
        return RegistrySource(
            origin.registry, origin.name, origin.channel, trust, self._events, cache=cache
        )

    async def _follow(self, source: BundleSource) -> None:
        async for update in source.updates():
            self.rollout.offer(update.bundle, update.state.manifest_sha256)

    async def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
            self._following = None
        if self._source is not None:
            await self._source.close()
            self._source = None

    # --- services and ticks ----------------------------------------------------------------------

    def attach(self, service: str, arbiter: Arbiter) -> None:
        """attnroute.scoring.loop.Seating."""
        self._services[service] = _Service(arbiter)
        self._seat_plugins(service)
        self.rollout.attach(service, arbiter)

    def detach(self, service: str) -> None:
        """attnroute.scoring.loop.Seating."""
        self._services.pop(service, None)
        self.rollout.detach(service)

    def step(self) -> None:
        """attnroute.scoring.loop.Seating."""
        self.rollout.step()

    def _seat_plugins(self, name: str) -> None:
        service, wanted = self._services[name], self._plugins.get(name, {})
        for gone in service.seats.keys() - wanted.keys():
            service.arbiter.unseat(service.seats.pop(gone))
        for plugin in wanted.keys() - service.seats.keys():
            beside = BesideScorer(
                wanted[plugin],
                self._plugin_worker,
                budget_s=PLUGIN_BUDGET_S,
                now_s=self._clock.now_s,
            )
            service.seats[plugin] = service.arbiter.seat(beside)

    def state(self) -> ScorersState:
        """How things stand, for admin and metrics."""
        seats = [
            seat_state(name, seat, "plugin")
            for name, service in self._services.items()
            for seat in service.seats.values()
        ]
        origin = self._origin
        where = "" if origin is None else str(origin.directory or origin.registry)
        channel = "" if origin is None else origin.channel
        return ScorersState(
            self.rollout.state(), (*self.rollout.seat_states(), *seats), where, channel
        )

    def reports(self, service: str) -> list[ModelReport]:
        """What the trainer is told of the service's gates, which moves channels by it."""
        return [
            ModelReport(
                verdict.name,
                verdict.version,
                verdict.gain,
                verdict.weight,
                verdict.windows,
                serving=verdict.serving,
            )
            for verdict in self.rollout.verdicts(service)
        ]

    async def run(self) -> None:
        """Takes bundles, for ever."""
        await self.rollout.run()

    async def close(self) -> None:
        """Ends what was begun."""
        await self._stop_following()
        self.rollout.close()
        self._worker.close()
        self._plugin_worker.close()
        if self._temporary is not None:
            await asyncio.to_thread(shutil.rmtree, self._temporary, ignore_errors=True)


class _Heard:
    """Source events, with refusals told to the rollout as well."""

    def __init__(self, scorers: Scorers, events: ScorerEvents) -> None:
        self._scorers = scorers
        self._events = events
        self.registry_connected = events.registry_connected
        self.registry_failed = events.registry_failed
        self.registry_fetched = events.registry_fetched

    def bundle_refused(self, version: str, problem: str) -> None:
        self._events.bundle_refused(version, problem)
        self._scorers.rollout.refuse(version, problem)


def _origin(model: Model, loaded: LoadedPolicy) -> _Origin:
    def resolved(path: str | None) -> Path | None:
        return None if path is None else loaded.resolve(path)

    return _Origin(
        model.registry,
        resolved(model.directory),
        model.name,
        model.channel,
        resolved(model.public_key),
        model.max_bytes,
        resolved(model.cache),
    )


def _plan(model: Model | None) -> RolloutPlan:
    if model is None:
        return RolloutPlan()
    return RolloutPlan(
        min_interval_s=model.rollout.min_interval.total_seconds(),
        steps=model.rollout.steps,
        canary=model.rollout.canary,
        judge_limit_s=model.rollout.judge_limit.total_seconds(),
        load_limit_s=model.load_limit.total_seconds(),
        run_limit_s=model.run_limit.total_seconds(),
        budget_s=model.budget.total_seconds(),
        int8=model.flavour == "int8",
        kv_rows=model.kv_rows,
    )
