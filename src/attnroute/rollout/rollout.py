"""Which model scores: a bundle is made ready, judged, given a part of the say, then all of it.

    loading -> shadow -> canary -> serving -> retired
         \\-> refused <-/   \\-> refused  \\-> rolled_back

A model that is new to a sidecar that has one is judged by the gate, on the windows of the model
that serves, without a say. Arms of live traffic would not do: they share the queues. With a gain
over the table in enough steps of the gate it gets a share of its weight, which bounds what it can
do, and with as many steps again it takes the place of the other: one pointer is replaced, between
two ticks, and no call notices. A loss, values that cannot be true or runs that take too long end
it at any stage; then the model before it, which was kept, serves again.

Everything that takes time (making sessions, trying them) is done on a thread of its own. Nothing
here raises because of a bundle: what served goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator

from attnroute.bundle import Bundle
from attnroute.clock import Clock
from attnroute.errors import AttnrouteError, BundleError
from attnroute.logs import fields
from attnroute.rollout.states import (
    Deployed,
    RolloutPlan,
    RolloutState,
    SeatState,
    Stage,
    Standing,
    Verdict,
    seat_state,
)
from attnroute.scoring.arbiter import Arbiter, Seat
from attnroute.scoring.attention import AttentionScorer, Model, Scale
from attnroute.scoring.beside import BesideScorer
from attnroute.scoring.worker import ScoringWorker

__all__ = ["Rollout", "RolloutError"]

logger = logging.getLogger(__name__)

SLOW_TICKS = 5
"""Ticks in a row without the end of a run after which a model is too slow."""

AT_FAULT = ("gate", "errors", "slow")
"""Causes of an end that lie in the bundle."""

HISTORY = 20
"""Bundles that are remembered."""

LOAD_POLL_S = 0.05


class RolloutError(AttnrouteError):
    """An operator asked for what cannot be done now."""


class Rollout:
    """Made and used on one event loop. wall clock and monotonic time come from `clock`."""

    def __init__(
        self,
        clock: Clock,
        worker: ScoringWorker,
        *,
        make: Callable[[Bundle, RolloutPlan], Model] | None = None,
    ) -> None:
        self.plan = RolloutPlan()
        self._clock = clock
        self._worker = worker
        self._make = make or (lambda bundle, plan: Model(bundle, int8=plan.int8))
        self._loader = ScoringWorker("attnroute-model")
        self._arbiters: dict[str, Arbiter] = {}
        self._serving: Deployed | None = None
        self._previous: Deployed | None = None
        self._candidate: Deployed | None = None
        self._waiting: tuple[Bundle, str] | None = None
        self._offered = asyncio.Event()
        self._took_s = -float("inf")
        self._had_one = False
        self._frozen = False
        self._history: deque[Standing] = deque(maxlen=HISTORY)
        self._ends: dict[tuple[str, str], int] = {}
        self._condemned: dict[str, Verdict] = {}
        """By service, of the bundle that was ended last for what it did. Its gates are gone, and
        whoever put it on the channel has not heard it yet: a verdict takes as long as an end."""

    # --- services --------------------------------------------------------------------------------

    def attach(self, service: str, arbiter: Arbiter) -> None:
        """A service is scored from now on."""
        self._arbiters[service] = arbiter
        for deployed in self._deployed():
            self._seat(deployed, service)

    def detach(self, service: str) -> None:
        """It is not any more."""
        arbiter = self._arbiters.pop(service, None)
        self._condemned.pop(service, None)
        for deployed in (*self._deployed(), *([self._previous] if self._previous else [])):
            deployed.scorers.pop(service, None)
            deployed.gains.pop(service, None)
            seat = deployed.seats.pop(service, None)
            if arbiter is not None and seat is not None:
                arbiter.unseat(seat)

    def state(self) -> RolloutState:
        """How things stand."""
        return RolloutState(
            serving=self._serving,
            candidate=self._candidate,
            previous=None if self._previous is None else self._previous.standing,
            waiting="" if self._waiting is None else self._waiting[0].manifest.version,
            frozen=self._frozen,
            history=tuple(self._history),
            ends=dict(self._ends),
        )

    def seat_states(self) -> list[SeatState]:
        """Of every service and model that is judged."""
        return [
            seat_state(service, seat, deployed.standing.stage)
            for deployed in self._deployed()
            for service, seat in deployed.seats.items()
        ]

    def verdicts(self, service: str) -> list[Verdict]:
        """What the service's gates say of the bundles that are judged, and said of the last one
        that was ended for it."""
        judged = [
            _verdict(deployed, seat, seat.weight, serving=seat.say > 0.0)
            for deployed in self._deployed()
            if (seat := deployed.seats.get(service)) is not None
        ]
        condemned = self._condemned.get(service)
        return judged if condemned is None else [*judged, condemned]

    # --- bundles ---------------------------------------------------------------------------------

    def offer(self, bundle: Bundle, sha256: str) -> None:
        """A bundle that the channel points at. The newest one waits for its turn; one that was
        refused or rolled back does not come again."""
        ended = ("refused", "rolled_back")
        if any(one.sha256 == sha256 and one.stage in ended for one in self._history):
            return
        if any(one.standing.sha256 == sha256 for one in self._deployed()):
            self._waiting = None
            return
        if self._previous is not None and self._previous.standing.sha256 == sha256:
            # Whoever moves the channel back wants what served before, at once.
            self._waiting = None
            self._roll_back("channel", "the channel points at what served before")
            return
        self._waiting = bundle, sha256
        self._offered.set()

    def refuse(self, version: str, problem: str) -> None:
        """A bundle that could not even be read."""
        standing = Standing("", version, "", "loading", "", self._clock.wall_s())
        self._history.appendleft(standing)
        self._end(standing, "refused", "invalid", problem)

    async def run(self) -> None:
        """Takes bundles one after another, for ever."""
        while True:
            await self._offered.wait()
            self._offered.clear()
            while self._waiting is not None and not self._frozen:
                left_s = self._took_s + self.plan.min_interval_s - self._clock.now_s()
                if left_s <= 0:
                    bundle, sha256 = self._waiting
                    self._waiting = None
                    await self._take(bundle, sha256)
                    continue
                # A newer one may take its place meanwhile; a freeze ends the wait.
                try:
                    async with asyncio.timeout(left_s):
                        await self._offered.wait()
                    self._offered.clear()
                except TimeoutError:
                    pass

    async def _take(self, bundle: Bundle, sha256: str) -> None:
        self._took_s = self._clock.now_s()
        manifest = bundle.manifest
        standing = Standing(
            manifest.name, manifest.version, sha256, "loading", "", self._clock.wall_s()
        )
        self._history.appendleft(standing)
        model = await self._loaded(bundle, standing)
        if model is None:
            return
        deployed = Deployed(standing, model, began_s=self._clock.now_s())
        if self._candidate is not None:
            self._refuse_candidate("newer", f"{manifest.version} came")
        if self._serving is None and not self._had_one:
            self._had_one = True
            self._serve(deployed, "the first one of this process")
            return
        self._candidate = deployed
        self._change(standing, "shadow", "")
        for service in self._arbiters:
            self._seat(deployed, service)

    async def _loaded(self, bundle: Bundle, standing: Standing) -> Model | None:
        """The model, made and tried; None if it is refused."""
        plan = self.plan

        def load() -> Model:
            model = self._make(bundle, plan)
            model.time_runs(Scale(), enough_s=plan.run_limit_s)
            return model

        ends_s = self._clock.now_s() + plan.load_limit_s
        run = self._loader.begin(load)
        while run is None or not run.wait(0.0):
            if self._clock.now_s() > ends_s:
                problem = f"it is not ready after {plan.load_limit_s:g} s"
                self._end(standing, "refused", "slow", problem)
                return None
            await asyncio.sleep(LOAD_POLL_S)
            if run is None:  # one that was given up keeps the thread
                run = self._loader.begin(load)
        try:
            model = run.result()
        except BundleError as error:
            self._end(standing, "refused", "invalid", str(error))
            return None
        except Exception as error:
            logger.exception("a bundle broke what tries it; what serves goes on")
            self._end(standing, "refused", "invalid", f"{type(error).__name__}: {error}")
            return None
        if model.run_s > plan.run_limit_s:
            problem = (
                f"a run takes {model.run_s * 1e3:.0f} ms of CPU, `model.run_limit` allows "
                f"{plan.run_limit_s * 1e3:.0f} ms"
            )
            self._end(standing, "refused", "slow", problem)
            return None
        return model

    # --- the gate decides ------------------------------------------------------------------------

    def step(self) -> None:
        """Looks at the gates; once a tick, after windows were judged."""
        if self._serving is not None:
            problem = self._problem(self._serving)
            if problem is not None:
                self._roll_back(*problem)
        candidate = self._candidate
        if candidate is None:
            return
        problem = self._problem(candidate)
        if problem is not None:
            self._refuse_candidate(*problem)
        elif self._gains(candidate) and not self._frozen:
            self._promote(candidate, "gate")
        elif self._clock.now_s() - candidate.began_s > self.plan.judge_limit_s:
            self._refuse_candidate("no_gain", f"no gain after {self.plan.judge_limit_s:g} s")

    def _gains(self, deployed: Deployed) -> bool:
        """Whether it does better than the table where it can be told; nowhere worse."""
        steps = [seat.good_steps for seat in deployed.seats.values() if seat.gate.steps > 0]
        worse = any(seat.bad_steps >= self.plan.steps for seat in deployed.seats.values())
        return not worse and max(steps, default=0) >= self.plan.steps

    def _problem(self, deployed: Deployed) -> tuple[str, str] | None:
        """Why it must not go on: cause and words; None: it may."""
        for service, seat in deployed.seats.items():
            if seat.benched > 0:
                return "errors", f"it failed, or gave values that cannot be true, at `{service}`"
            if deployed.scorers[service].slow_in_a_row >= SLOW_TICKS:
                return "slow", f"its runs for `{service}` miss their ticks"
        steps = self.plan.steps
        worse = [name for name, seat in deployed.seats.items() if seat.bad_steps >= steps]
        better = any(seat.good_steps >= steps for seat in deployed.seats.values())
        # Where it is good at one service and bad at another, each gate does what is right there; a
        # candidate has to do better than that. One without another to go back to stays as well:
        # its weight is next to nothing, and may rise again.
        is_serving = deployed is self._serving
        if worse and not (is_serving and (better or self._previous is None)):
            return "gate", f"it does worse than the table at `{worse[0]}`"
        return None

    def _promote(self, candidate: Deployed, reason: str) -> None:
        standing = candidate.standing
        if standing.stage == "shadow" and self.plan.canary > 0.0:
            candidate.began_s = self._clock.now_s()
            self._change(standing, "canary", reason)
            for seat in candidate.seats.values():
                seat.say = self.plan.canary
                # Judged anew, now that it has a say.
                seat.good_steps = 0
            return
        self._serve(candidate, reason)

    def _serve(self, deployed: Deployed, reason: str) -> None:
        """The swap: from the next tick on this one scores."""
        if deployed is self._candidate:
            self._candidate = None
        before, self._serving = self._serving, deployed
        if before is not None:
            self._unseat(before)
            self._change(before.standing, "retired", f"{deployed.standing.version} serves")
            self._previous = before
        for service in self._arbiters:
            self._seat(deployed, service)
        for seat in deployed.seats.values():
            seat.say = 1.0
        self._change(deployed.standing, "serving", reason)

    def _roll_back(self, cause: str, problem: str) -> None:
        """Ends what serves; what served before it does so again, else the table alone."""
        bad, self._serving = self._serving, None
        if bad is None:
            return
        self._condemn(bad, cause)
        self._unseat(bad)
        self._end(bad.standing, "rolled_back", cause, problem)
        previous, self._previous = self._previous, None
        if previous is not None:
            self._serve(previous, f"{bad.standing.version} was rolled back")

    def _refuse_candidate(self, cause: str, problem: str) -> None:
        candidate, self._candidate = self._candidate, None
        if candidate is not None:
            self._condemn(candidate, cause)
            self._unseat(candidate)
            self._end(candidate.standing, "refused", cause, problem)

    # --- what an operator asks for ---------------------------------------------------------------

    def promote(self, version: str) -> Standing:
        """Has the candidate serve now. version: its, or empty for whichever it is. Raises
        RolloutError."""
        candidate = self._candidate
        if candidate is None or version not in ("", candidate.standing.version):
            found = "none" if candidate is None else f"`{candidate.standing.version}`"
            wanted = f"`{version}`" if version else "a model"
            raise RolloutError(
                f"cannot promote {wanted}: the model in shadow or canary is {found}; point the "
                "channel at it and wait until it is loaded"
            )
        self._serve(candidate, "an operator")
        return candidate.standing

    def roll_back(self) -> Standing:
        """Ends what serves, and returns it. Raises RolloutError."""
        if self._serving is None:
            raise RolloutError("cannot roll back: no model serves; the table scores alone")
        standing = self._serving.standing
        self._roll_back("operator", "an operator")
        return standing

    def freeze(self, frozen: bool) -> None:  # noqa: FBT001 - a state, not an option
        """Takes no bundle and promotes none until it is thawed; a bad one is rolled back still."""
        self._frozen = frozen
        self._offered.set()

    def stop(self) -> None:
        """Takes every model away: the policy has no `model` any more."""
        self._refuse_candidate("policy", "the policy has no such model any more")
        self._previous = None
        if self._serving is not None:
            self._roll_back("policy", "the policy has no such model any more")
        self._waiting = None
        self._had_one = False
        # What is configured next may be the same bundle again.
        self._history.clear()
        self._condemned.clear()

    def close(self) -> None:
        """Lets the thread that loads end; waits for nothing."""
        self._loader.close()

    # --- seats -----------------------------------------------------------------------------------

    def _deployed(self) -> Iterator[Deployed]:
        if self._serving is not None:
            yield self._serving
        if self._candidate is not None:
            yield self._candidate

    def _seat(self, deployed: Deployed, service: str) -> None:
        if service in deployed.seats:
            return
        says = {"shadow": 0.0, "canary": self.plan.canary}
        scorer = deployed.scorers[service] = BesideScorer(
            AttentionScorer(deployed.model, kv_rows=self.plan.kv_rows),
            self._worker,
            budget_s=self.plan.budget_s,
            now_s=self._clock.now_s,
        )
        deployed.seats[service] = self._arbiters[service].seat(
            scorer,
            say=says.get(deployed.standing.stage, 1.0),
            gd=deployed.gains.get(service, 0.0),
        )

    def _unseat(self, deployed: Deployed) -> None:
        for service, seat in deployed.seats.items():
            deployed.gains[service] = max(seat.gate.gd, 0.0)
            self._arbiters[service].unseat(seat)
        deployed.seats.clear()
        deployed.scorers.clear()

    def _condemn(self, deployed: Deployed, cause: str) -> None:
        """Keeps what its gates say, if it ends for what it did."""
        if cause not in AT_FAULT:
            return
        self._condemned = {
            # Good at this service and ended because of another one: its weight stands.
            service: _verdict(
                deployed,
                seat,
                seat.weight if cause == "gate" and not seat.bad_steps else 0.0,
                serving=False,
            )
            for service, seat in deployed.seats.items()
        }

    def _change(self, standing: Standing, stage: Stage, reason: str) -> None:
        standing.stage, standing.reason = stage, reason
        standing.changed_at_s = self._clock.wall_s()
        logger.info("model %s", stage, extra=fields(version=standing.version, reason=reason))

    def _end(self, standing: Standing, stage: Stage, cause: str, problem: str) -> None:
        standing.stage, standing.reason = stage, problem
        standing.changed_at_s = self._clock.wall_s()
        self._ends[stage, cause] = self._ends.get((stage, cause), 0) + 1
        about = fields(version=standing.version, stage=stage, cause=cause, problem=problem)
        if cause in ("operator", "policy", "newer", "channel"):
            logger.info("a model gave way", extra=about)
        else:
            logger.warning("a model was refused or rolled back", extra=about)


def _verdict(deployed: Deployed, seat: Seat, weight: float, *, serving: bool) -> Verdict:
    standing, gate = deployed.standing, seat.gate
    return Verdict(standing.name, standing.version, gate.gd, weight, gate.steps, serving=serving)
