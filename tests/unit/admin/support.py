"""An admin service over a fake data plane."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from tests.support.fake_plane import FakePlane, spec

from attnroute.admin.service import AdminService, ConfigInfo, ServiceInfo
from attnroute.clock import ManualClock
from attnroute.discovery.overrides import Overrides
from attnroute.rollout import Rollout, ScorersState
from attnroute.scoring.worker import ScoringWorker
from attnroute.telemetry.picks import PickHistory
from attnroute.telemetry.snapshot import Telemetry

CART = ServiceInfo(
    name="cart",
    authorities=("cart", "cart:*"),
    balancer="least_request",
    source="static",
    source_error="",
)
CONFIG = ConfigInfo(
    policy_yaml="listeners: []\n",
    sha256="ab" * 32,
    source="policy.yaml",
    generation=3,
    applied_at_s=1_700_000_000.25,
    rejected="",
)


class Control:
    """What the sidecar would say."""

    def __init__(self, *services: ServiceInfo) -> None:
        self.known: list[ServiceInfo] = list(services)
        self.in_force = CONFIG
        self.changes_allowed = False

    def services(self) -> Sequence[ServiceInfo]:
        return self.known

    def config(self) -> ConfigInfo:
        return self.in_force

    def allow_changes(self) -> bool:
        return self.changes_allowed


class Models:
    """A rollout with no service and no bundle."""

    def __init__(self) -> None:
        self.rollout = Rollout(ManualClock(), ScoringWorker())

    def state(self) -> ScorersState:
        return ScorersState(self.rollout.state(), (), "", "")


class World:
    """One service `cart` with two endpoints, and `empty` without any."""

    def __init__(self, *, watches_max: int = 4) -> None:
        self.plane = FakePlane("cart", "empty")
        self.control = Control(CART, replace(CART, name="empty"))
        self.clock = ManualClock()
        self.telemetry = Telemetry(self.plane, self.clock)
        self.overrides = Overrides(self.plane, self.clock)
        cart = [spec("10.0.0.1:1"), spec("10.0.0.2:1")]
        self.overrides.apply_endpoints("cart", json.dumps({"endpoints": cart}).encode())
        self.picks = PickHistory(self.plane)
        self.hits: list[str] = []
        self.models = Models()
        self.service = AdminService(
            self.control,
            self.telemetry,
            self.overrides,
            self.picks,
            self.plane,
            self.clock,
            models=self.models,
            watches_max=watches_max,
            on_limit_hit=self.hits.append,
        )
