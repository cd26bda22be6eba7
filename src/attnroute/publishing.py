"""From a trained bundle to the channels that sidecars follow, by rules and by what gates say.

A bundle goes to a channel of its own first (`canary`). The sidecars that follow it watch it in
shadow and report what their gates make of it; it becomes `stable` when they say that it is better,
and is taken back when they say that it is not. Arms of live traffic share queues, so that no
comparison of latencies decides (docs/model.md). Of several trainers at one directory one publishes.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from attnroute.bundle import Bundle
from attnroute.bundle.manifest import parse_version
from attnroute.clock import Clock
from attnroute.errors import AttnrouteError, BundleError, ConflictError, RegistryError
from attnroute.fleet.messages import ModelReport
from attnroute.logs import fields
from attnroute.registry.leader import LEASE_S, Leader
from attnroute.registry.store import Store
from attnroute.registry.types import ChannelState

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["PublishEvents", "PublishRules", "Publisher", "next_version"]

logger = logging.getLogger(__name__)

REFUSALS = ("too_soon", "follower", "frozen", "conflict", "disk")
"""Why a bundle was not published, as the metric says."""

WEIGHT_MIN = 0.05
"""A gate's weight at which a bundle counts as harmful (docs/model.md): there it has no say."""


@dataclass(frozen=True)
class PublishRules:
    """When what is published."""

    interval_s: float = 60.0
    """At least between two bundles."""
    keep: int = 20
    """Bundles that stay, besides those that channels hold."""
    first: str = "canary"
    """The channel that a bundle comes to first; the same as `last`: there is no trial."""
    last: str = "stable"
    windows: int = 3
    """That a gate has judged before its word counts."""
    reports: int = 1
    """Gates that have to speak, one for each sidecar and service."""


class PublishEvents(Protocol):
    """What is counted."""

    def bundle_published(self, version: str) -> None: ...
    def publish_refused(self, reason: str) -> None: ...
    def channel_moved(self, channel: str, version: str, why: str) -> None: ...
    def publisher_leads(self, *, leads: bool) -> None: ...


def next_version(newest: str, *, same_schema: bool) -> str:
    """The version after the newest one: other weights are another patch, another feature schema is
    another major version. newest: empty where there is none."""
    if not newest:
        return "1.0.0"
    major, minor, patch = parse_version(newest)
    return f"{major}.{minor}.{patch + 1}" if same_schema else f"{major + 1}.0.0"


class Publisher:
    """One trainer's part. Methods block on the disk; one at a time. holder: unique to this process;
    who: for people."""

    def __init__(
        self,
        store: Store,
        name: str,
        rules: PublishRules,
        clock: Clock,
        events: PublishEvents,
        *,
        holder: str,
        who: str = "",
        key: Ed25519PrivateKey | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self._store = store
        self._name = name
        self._rules = rules
        self._clock = clock
        self._events = events
        self._holder = holder
        self._key = key
        self._leader = Leader(store.root / name, holder, clock, who=who, lease_s=lease_s)
        self._leads: bool | None = None
        self._published_s = -float("inf")

    def prepare(self) -> None:
        """Makes the directory. Raises RegistryError."""
        self._store.prepare(self._name)

    def renew(self) -> bool:
        """Keeps or takes the place of the leader; to be called every few seconds. False while
        another trainer has it, or the directory cannot be changed."""
        try:
            leads = self._leader.renew()
        except (RegistryError, OSError) as error:
            logger.debug("the leader's place cannot be taken", extra=fields(problem=str(error)))
            leads = False
        if leads != self._leads:
            self._leads = leads
            self._events.publisher_leads(leads=leads)
            if leads:
                logger.info("this trainer publishes", extra=fields(name=self._name))
            else:
                logger.info(
                    "another trainer publishes; this one waits",
                    extra=fields(name=self._name, leader=self._leader.other),
                )
        return leads

    def close(self) -> None:
        """Leaves the leader's place to another trainer."""
        try:
            self._leader.resign()
        except (RegistryError, OSError) as error:
            logger.debug("the leader's place stays taken", extra=fields(problem=str(error)))

    def refusal(self) -> str:
        """Why nothing can be published now, a word of REFUSALS; empty if it can."""
        if self._clock.now_s() - self._published_s < self._rules.interval_s:
            return "too_soon"
        if not self.renew():
            return "follower"
        try:
            frozen = self._store.channel(self._name, self._rules.first).frozen
        except (RegistryError, BundleError):
            return "disk"
        return "frozen" if frozen else ""

    def publish(self, bundle: Bundle) -> str:
        """Publishes a bundle under the next version, which it returns; empty if it could not, which
        is counted and said, and leaves every channel where it was."""
        reason = self.refusal()
        if not reason:
            try:
                return self._publish(bundle)
            except (BundleError, RegistryError, OSError) as error:
                reason = "conflict" if isinstance(error, ConflictError) else "disk"
                logger.warning(
                    "a bundle could not be published; channels stay where they are",
                    extra=fields(name=self._name, problem=str(error)),
                )
        self._events.publish_refused(reason)
        return ""

    def _publish(self, bundle: Bundle) -> str:
        newest = next(iter(self._store.versions(self._name)), "")
        same = False
        if newest:
            try:
                schema = self._store.listed(self._name, newest).feature_schema
                same = schema == bundle.manifest.feature_schema
            except (BundleError, RegistryError):
                # It is damaged: its number is taken all the same.
                same = True
        version = next_version(newest, same_schema=same)
        manifest = replace(bundle.manifest, name=self._name, version=version)
        self._store.add(replace(bundle, manifest=manifest), key=self._key, leader=self._holder)
        state = self._store.channel(self._name, self._rules.first)
        self._move(state, version, "published")
        self._published_s = self._clock.now_s()
        self._events.bundle_published(version)
        self._store.prune(self._name, self._rules.keep)
        return version

    def judge(self, reports: Sequence[ModelReport]) -> str:
        """Moves channels by what gates say of the bundle on trial. Returns the version that became
        `stable` or that `canary` was taken back to; empty if nothing moved."""
        if not self._leads:
            return ""
        try:
            return self._judge(reports)
        except AttnrouteError as error:
            # Somebody else moved it, it is frozen, or the disk is full: the next look decides anew.
            self._events.publish_refused("conflict" if isinstance(error, ConflictError) else "disk")
            logger.debug("a channel could not be moved", extra=fields(problem=str(error)))
            return ""

    def _judge(self, reports: Sequence[ModelReport]) -> str:
        rules = self._rules
        if rules.first == rules.last:
            return ""
        trial = self._store.channel(self._name, rules.first)
        stable = self._store.channel(self._name, rules.last)
        if trial.version in ("", stable.version):
            return ""
        heard = [
            report
            for report in reports
            if (report.name, report.version) == (self._name, trial.version)
            and report.windows >= rules.windows
        ]
        if len(heard) < rules.reports:
            return ""
        gain = statistics.fmean(report.gain for report in heard)
        weight = statistics.fmean(report.weight for report in heard)
        worst = min(report.weight for report in heard)
        said = f"{len(heard)} gates: gain {gain:.5f}, weight {weight:.2f}, worst {worst:.2f}"
        if gain > 0 and worst >= WEIGHT_MIN:
            if stable.frozen:
                return ""
            self._move(stable, trial.version, f"promoted by {said}")
            return trial.version
        if weight < WEIGHT_MIN and stable.version and not trial.frozen:
            self._move(trial, stable.version, f"taken back by {said}")
            return stable.version
        return ""

    def _move(self, state: ChannelState, version: str, reason: str) -> None:
        moved = self._store.point(
            self._name,
            state.channel,
            version,
            expected_generation=state.generation,
            reason=reason,
            leader=self._holder,
        )
        self._events.channel_moved(state.channel, version, reason.split()[0])
        logger.info(
            "a channel moved",
            extra=fields(
                name=self._name,
                channel=state.channel,
                version=version,
                before=state.version,
                generation=moved.generation,
                reason=reason,
            ),
        )
