"""Training beside a fleet: increases in, now and then a bundle out.

One router for all services of a trainer: a class is known by its method, an endpoint by what it
does, so nothing in it belongs to one service. Everything it needs to go on after a kill is in its
directory: the scrapes, checked and bounded, and the state, replaced as a whole.

Blocking and without a clock: whoever calls it does so in a process or a thread of its own.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnroute.bundle import Bundle
from attnroute.features.facts import Facts
from attnroute.features.table import Array
from attnroute.logs import fields
from attnroute.model.export import ExportError, bundle_of, export_graphs, parity, router_of
from attnroute.model.network import Router
from attnroute.telemetry.increases import Increases
from attnroute.train.card import online_card
from attnroute.train.dataset import ScrapeLog
from attnroute.train.gates import CandidateLimits, refusal
from attnroute.train.replay import Replay, Sample, sample_of
from attnroute.train.scrapes import Scrape, scrapes_of
from attnroute.train.trainer import Cycle, StateError, Training, TrainingConfig

__all__ = ["OnlineConfig", "OnlineTraining"]

logger = logging.getLogger(__name__)

PRETRAINED_RATE = 1e-3
"""Learning rate where training goes on from a bundle."""

CYCLES_KEPT = 720
SERVICES_MAX = 100


@dataclass(frozen=True)
class OnlineConfig:
    """How a trainer trains."""

    training: TrainingConfig = field(default_factory=TrainingConfig)
    candidate: CandidateLimits = field(default_factory=CandidateLimits)
    bytes_max: int = 256 << 20
    """Of the scrapes on disk."""


@dataclass
class _Service:
    replay: Replay = field(default_factory=Replay)
    before: tuple[Facts, Array] | None = None

    def take(self, scrape: Scrape) -> Sample | None:
        """A sample of what was known and what came, from the second scrape on."""
        before, self.before = self.before, self.replay.take(scrape)
        if before is None or not before[0].classes or not before[0].endpoints:
            return None
        sample = sample_of(*before, scrape)
        return sample if sample.calls.sum() > 0 else None


class OnlineTraining:
    """directory: of scrapes and state. start: a bundle to begin from where there is no state yet;
    None: the table.

    Raises DatasetError where the directory cannot be written.
    """

    def __init__(
        self, directory: Path, config: OnlineConfig | None = None, start: Bundle | None = None
    ) -> None:
        self.config = config or OnlineConfig()
        self.cycles: deque[Cycle] = deque(maxlen=CYCLES_KEPT)
        self.left_out = 0
        """Scrapes of services beyond SERVICES_MAX."""
        self.log = ScrapeLog(directory / "scrapes", bytes_max=self.config.bytes_max)
        self._state = directory / "state.pt"
        self._graphs: Mapping[str, bytes] | None = None
        self._services: dict[str, _Service] = {}
        self._last: Sample | None = None
        self.training = self._begin(start)
        for scrape in self.log.read():
            sample = self._sample(scrape)
            if sample is not None:
                self.training.remember(sample)

    def take(self, increases: Increases, at_s: float) -> list[Cycle]:
        """Keeps what went up and trains on it; a cycle for each service with calls. at_s: a clock
        that does not go back over restarts of this process."""
        found = []
        for scrape in scrapes_of(increases, at_s):
            self.log.append(scrape)
            sample = self._sample(scrape)
            if sample is not None:
                found.append(self.training.cycle(sample))
        if found:
            self.training.save(self._state)
        self.cycles.extend(found)
        return found

    def candidate(self, name: str, now_s: float) -> tuple[Bundle | None, str]:
        """A bundle of the router as it is, version 0.0.0 until it is published; or None and why
        there is none. now_s: Unix time."""
        if self._last is None or not self.cycles:
            return None, "nothing has been trained on yet"
        gains = [cycle.gain for cycle in self.cycles]
        health, config = self.cycles[-1].health, self.config
        # The cheap reasons first: the graphs are only made for who passes.
        reason = refusal(gains, 0.0, health, config.candidate, config.training.health)
        if reason:
            return None, reason
        router = self.training.router
        try:
            if self._graphs is None:
                self._graphs = export_graphs(router)
            bundle = self._bundle(name, gains, now_s)
        except ExportError as error:
            return None, str(error)
        off = parity(bundle.graphs, router)
        reason = refusal(gains, off, health, config.candidate, config.training.health)
        return (None, reason) if reason else (bundle, "")

    def close(self) -> None:
        """Ends writing."""
        self.log.close()

    def _begin(self, start: Bundle | None) -> Training:
        training = self.config.training
        if start is not None:
            self._graphs = {name: start.graphs[name] for name in start.graphs if "int8" not in name}
        if self._state.exists():
            try:
                return Training.load(self._state, training)
            except StateError as error:
                logger.warning("training begins anew", extra=fields(problem=str(error)))
        if start is None:
            return Training(Router(seed=training.seed), training)
        found = Training(router_of(start), training)
        for group in found.optimiser.param_groups:
            group["lr"] = min(training.learning_rate, PRETRAINED_RATE)
        return found

    def _sample(self, scrape: Scrape) -> Sample | None:
        service = self._services.get(scrape.service)
        if service is None:
            if len(self._services) >= SERVICES_MAX:
                self.left_out += 1
                return None
            service = self._services[scrape.service] = _Service()
        sample = service.take(scrape)
        if sample is not None:
            self._last = sample
        return sample

    def _bundle(self, name: str, gains: Sequence[float], now_s: float) -> Bundle:
        assert self._last is not None, "something was trained on"
        training = self.training
        trained = {
            "command": "attnroute trainer",
            "scrapes": training.cycles,
            "seed": training.config.seed,
            "steps": training.config.steps,
        }
        health = self.cycles[-1].health
        metrics = {
            "gain": gains[-1],
            "gate_weight": training.gate.weight,
            "usage_min": health.usage_min,
            "entropy": health.entropy,
        }
        return bundle_of(
            training.router,
            name=name,
            version="0.0.0",
            trained=trained,
            metrics=metrics,
            card=online_card(name, metrics, training.cycles),
            graphs=self._graphs,
            probe_inputs=self._last.matrices.tensors(),
            now_s=now_s,
        )
