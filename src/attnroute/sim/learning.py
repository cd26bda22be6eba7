"""The learning of simulated sidecars: production's table, gate and fleet merge, in virtual time.

Between two steps of a run each sidecar ends its window as a real one does each second, at a moment
of its own; windows travel to a trainer, which answers with the fleet's sums a second later at most.
Nothing here decides where a call goes: scores are published to the sidecars' pickers, and what a
sidecar knows is what its own windows and the trainer say.
"""

from __future__ import annotations

import heapq
import json
import math
import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from attnroute import bundle
from attnroute.dataplane import Simulation, StaleEpochError
from attnroute.features.merge import FleetTable, Subscriber
from attnroute.features.schema import schema_hash
from attnroute.features.split import SplitParameters
from attnroute.features.table import TableParameters
from attnroute.features.view import OwnWindow
from attnroute.scoring.attention import AttentionScorer, Model
from attnroute.scoring.service import Scores, ServiceScores
from attnroute.scoring.windows import TakenWindow, WindowReader
from attnroute.sim.faults import FaultyModel

__all__ = ["LEARNED", "LEARNING_KEYS", "Learning", "Watch", "play_learned"]

WINDOW_S = 1.0
EXCHANGE_S = 0.005
"""From a sidecar to the trainer, and back."""
REOPEN_S = 1.0
"""From the return of the trainer to a sidecar's next stream."""
ASSUMED_SIDECARS = 4
"""M while no trainer tells: the policy's default."""

_SERVICE = "simulated"
_CLASSES_MAX = 1_024
_ENDPOINTS_MAX = 20_000


LEARNED = "learned"
"""The balancer that goes by scores."""


@dataclass(frozen=True, slots=True)
class Learning:
    """How sidecars learn in a run."""

    fleet: bool = True
    """From each other, too, by a trainer."""
    reports: bool = True
    """False: endpoints report nothing, whatever the scenario says."""
    model: bool | str = False
    """A second scorer stands beside the table: True: one that says what the table says; a path: the
    bundle in that directory. Until an event `model_fault` makes it lie."""
    split: bool = False
    """The trainer solves how calls are best shared out, and sidecars draw candidates by that."""
    concurrency: int | None = None
    """Calls that endpoints work on at a time, as an operator might tell; None: it is learned."""
    learn_concurrency: bool = True
    """False: taken to be 1 where nobody tells."""
    endpoint_factor: bool = True
    """False: an endpoint's speed is not shared among its classes, f = 1."""
    kind_factor: bool = True
    """False: nor among the classes of a kind, r = 1."""
    cells: bool = True
    """False: classes are not told apart on an endpoint, S0 = cm f r."""
    young: bool = True
    """False: a new endpoint counts as one like the others."""

    def parameters(self) -> TableParameters:
        """Of the table."""
        defaults = TableParameters()
        return replace(
            defaults,
            endpoint_prior_calls=defaults.endpoint_prior_calls
            if self.endpoint_factor
            else math.inf,
            kind_prior_calls=defaults.kind_prior_calls if self.kind_factor else math.inf,
            cell_prior_calls=defaults.cell_prior_calls if self.cells else 1e12,
            young_factor=defaults.young_factor if self.young else 1.0,
        )


LEARNING_KEYS = tuple(one.name for one in fields(Learning))


Watch = Callable[[float, TakenWindow], None]
"""Told of every window of every sidecar, with the time, before it is learned from."""


def play_learned(
    scenario: bytes, balancer: bytes, seed: int, learning: Learning, watch: Watch | None = None
) -> bytes:
    """Plays a scenario whose balancer goes by scores; the JSON of the outcome, with what was known
    in the end under `learning`."""
    run = _Run(scenario, balancer, seed, learning)
    run.watch = watch
    outcome = json.loads(run.play())
    return json.dumps(outcome | {"learning": run.learned()}).encode()


def _without_reports(described: dict[str, Any]) -> bytes:
    silent = described["reports"] | {"enabled": False}
    # There is nothing left to lose.
    events = [event for event in described["events"] if "report_loss" not in event["action"]]
    return json.dumps(described | {"reports": silent, "events": events}).encode()


def _model(directory: str) -> Model:
    return Model(bundle.read(Path(directory), expected_schema=schema_hash()))


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None


class _Plane:
    """One sidecar of a simulation, as the part of a data plane that learning uses."""

    def __init__(self, simulation: Simulation, sidecar: int) -> None:
        self._simulation = simulation
        self._sidecar = sidecar

    def classes(self, _service: str) -> tuple[int, bytes]:
        return self._simulation.classes(self._sidecar)

    def endpoints(self, _service: str) -> tuple[int, bytes]:
        return self._simulation.endpoints(self._sidecar)

    def take_window(self, _service: str) -> tuple[int, int, int, bytes, bytes]:
        return self._simulation.take_window(self._sidecar)

    def publish(self, scores: Scores) -> None:
        self._simulation.publish_scores(
            self._sidecar,
            endpoint_epoch=scores.layout.endpoint_epoch,
            class_epoch=scores.layout.class_epoch,
            cost_s=scores.cost_s,
            table_cost_s=scores.table_cost_s,
            spread=scores.spread,
            probability=scores.probability,
            mean_service_s=scores.mean_service_s,
            concurrency=scores.concurrency,
            sidecars=scores.sidecars,
            model=scores.model,
        )


class _Sidecar:
    """What one sidecar has learned. zone: of the sidecar."""

    def __init__(self, run: _Run, index: int, zone: str) -> None:
        self.plane = _Plane(run.simulation, index)
        self.reader = WindowReader(self.plane)
        self.model = (
            FaultyModel(run.seed, index, None if run.model is None else AttentionScorer(run.model))
            if run.learning.model
            else None
        )
        self.scores = ServiceScores(
            sidecars=ASSUMED_SIDECARS,
            now_s=0.0,
            concurrency=run.concurrency,
            parameters=run.learning.parameters(),
            scorers=() if self.model is None else (self.model,),
            own_zone=zone,
        )
        self.identity = index.to_bytes(16, "big")
        self.zone = zone
        self.published: Scores | None = None
        self.stream: Subscriber | None = None
        self.began = False
        self.sent = 0
        self.fresh = False
        """Whether scores were published since the last window, as production's loop has it."""

    @property
    def model_weight(self) -> float:
        """Of the second scorer."""
        return self.scores.arbiter.seats[0].weight

    def end_window(self, now_s: float, watch: Watch | None) -> None:
        """Learns from the last second and publishes what it says."""
        taken = self.reader.take(_SERVICE)
        if taken is not None:
            if watch is not None:
                watch(now_s, taken)
            self.scores.observe(taken.layout, taken.window, taken.usable, now_s, taken.attributes)
        if not self.fresh:
            self.publish(now_s)
        self.fresh = False

    def publish(self, now_s: float) -> None:
        """Publishes what is known now."""
        scores = self.scores.scores(now_s)
        if scores is not None and scores.layout.endpoints:
            self.published = scores
            # A set that has just changed: the data plane carries the rows over by itself.
            with suppress(StaleEpochError):
                self.plane.publish(scores)
                self.fresh = True

    def unsent(self) -> list[OwnWindow]:
        """Own windows that the trainer lacks, each once in a stream."""
        found = self.scores.shared.late(self.sent)
        if found:
            self.sent = found[-1].number
        return found


class _Run:
    """A run and the agenda of what learns in it."""

    def __init__(self, scenario: bytes, balancer: bytes, seed: int, learning: Learning) -> None:
        described = json.loads(scenario)
        if not learning.reports:
            scenario = _without_reports(described)
        self.seed = seed
        self.learning = learning
        self.model = _model(learning.model) if isinstance(learning.model, str) else None
        """Shared by all sidecars."""
        self.concurrency = learning.concurrency
        if self.concurrency is None and not learning.learn_concurrency:
            self.concurrency = 1
        self.simulation = Simulation(scenario, balancer, seed)
        self.watch: Watch | None = None
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._made = 0
        zones = described["sidecars"]["zones"] or [""]
        self._sidecars = [
            _Sidecar(self, index, zones[index % len(zones)])
            for index in range(described["sidecars"]["count"])
        ]
        self._trainer: FleetTable | None = None
        self._trainers = 0
        count = len(self._sidecars)
        for index, sidecar in enumerate(self._sidecars):
            # Each at a moment of its own, as processes that were started at different times.
            self._each_window(WINDOW_S * (index + 1) / count, sidecar)
        if learning.fleet:
            self._start_trainer(0.0)
            self._at(WINDOW_S / 2, self._trainer_ticks)
        for event in described["events"]:
            self._note(event["at_ms"] / 1e3, event["action"])

    def play(self) -> bytes:
        """To the end."""
        while True:
            now_s, _, do = heapq.heappop(self._agenda)
            if not self.simulation.run_until(round(now_s * 1e9)):
                return self.simulation.finish()
            do(now_s)

    def learned(self) -> dict[str, Any]:
        """Means over sidecars: of calls that endpoints work on at a time, the smallest and the
        largest; of the weight of the second scorer, None without one."""
        last = [sidecar.published for sidecar in self._sidecars if sidecar.published is not None]
        weights = [sidecar.model_weight for sidecar in self._sidecars if sidecar.model is not None]
        return {
            "concurrency_min": _mean([float(scores.concurrency.min()) for scores in last]),
            "concurrency_max": _mean([float(scores.concurrency.max()) for scores in last]),
            "model_weight": _mean(weights),
        }

    def _at(self, time_s: float, do: Callable[[float], None]) -> None:
        self._made += 1
        heapq.heappush(self._agenda, (time_s, self._made, do))

    def _note(self, at_s: float, action: dict[str, Any]) -> None:
        if "trainer_down" in action and self.learning.fleet:
            self._at(at_s, self._stop_trainer)
            lasts_s = action["trainer_down"]["for_ms"] / 1e3
            if lasts_s > 0:
                self._at(at_s + lasts_s, self._start_trainer)
        if "model_fault" in action and self.learning.model:
            fault = action["model_fault"]
            self._at(at_s, lambda _: self._lie(fault["fault"]))
            if fault["for_ms"] > 0:
                self._at(at_s + fault["for_ms"] / 1e3, lambda _: self._lie(None))

    def _lie(self, fault: str | None) -> None:
        for sidecar in self._sidecars:
            if sidecar.model is not None:
                sidecar.model.fault = fault

    # --- sidecars --------------------------------------------------------------------------------

    def _each_window(self, at_s: float, sidecar: _Sidecar) -> None:
        def end(now_s: float) -> None:
            sidecar.end_window(now_s, self.watch)
            self._send(now_s, sidecar)
            self._each_window(now_s + WINDOW_S, sidecar)

        self._at(at_s, end)

    def _send(self, now_s: float, sidecar: _Sidecar) -> None:
        stream, trainer = sidecar.stream, self._trainer
        if stream is None or not sidecar.began:
            return
        for own in sidecar.unsent():

            def arrive(then_s: float, own: OwnWindow = own) -> None:
                if trainer is not None and trainer is self._trainer:
                    trainer.window(stream, own.number, then_s - own.ended_s, own.window, then_s)

            self._at(now_s + EXCHANGE_S, arrive)

    def _open(self, sidecar: _Sidecar) -> None:
        sidecar.scores.shared.opened()
        sidecar.stream = Subscriber(sidecar.identity, sidecar.zone)
        sidecar.began, sidecar.sent = False, 0

    # --- the trainer -----------------------------------------------------------------------------

    def _start_trainer(self, now_s: float) -> None:
        self._trainers += 1
        self._trainer = trainer = FleetTable(
            trainer=self._trainers.to_bytes(16, "big"),
            now_s=now_s,
            classes_max=_CLASSES_MAX,
            endpoints_max=_ENDPOINTS_MAX,
            parameters=self.learning.parameters(),
            split=SplitParameters() if self.learning.split else None,
        )

        def reopen(_: float) -> None:
            if self._trainer is trainer:
                for sidecar in self._sidecars:
                    self._open(sidecar)

        self._at(now_s if self._trainers == 1 else now_s + REOPEN_S, reopen)

    def _stop_trainer(self, _: float) -> None:
        self._trainer = None
        for sidecar in self._sidecars:
            sidecar.stream = None

    def _trainer_ticks(self, now_s: float) -> None:
        self._at(now_s + WINDOW_S, self._trainer_ticks)
        trainer = self._trainer
        if trainer is None:
            return
        trainer.tick(now_s)
        for sidecar in self._sidecars:
            if (stream := sidecar.stream) is not None:
                self._tell(now_s, trainer, sidecar, stream)

    def _tell(
        self, now_s: float, trainer: FleetTable, sidecar: _Sidecar, stream: Subscriber
    ) -> None:
        state = trainer.update(stream, now_s)

        def arrive(then_s: float) -> None:
            if sidecar.stream is not stream:
                return
            if not sidecar.scores.shared.update(state, then_s):
                self._open(sidecar)
                return
            if not sidecar.began:
                sidecar.began = True
                self._send(then_s, sidecar)
            sidecar.publish(then_s)

        self._at(now_s + EXCHANGE_S, arrive)
