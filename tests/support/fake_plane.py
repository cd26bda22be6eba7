"""A data plane without sockets for unit tests of the control side: endpoint sets in, rows out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attnroute.dataplane import ENDPOINT_DTYPE, ConfigError

PICKS_KEPT = 1_000


@dataclass
class _Service:
    epoch: int = 0
    listed: list[dict[str, Any]] = field(default_factory=list)
    table: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, ENDPOINT_DTYPE))


class FakePlane:
    """Keeps what it was given; `refuse` makes the next set of a service fail with that reason."""

    def __init__(self, *services: str) -> None:
        self._services = {name: _Service() for name in services}
        self._next_id = 1
        self.refuse: dict[str, str] = {}
        self.snapshots_taken = 0
        self.reports: list[tuple[str, str, bytes]] = []
        self.lists_taken = 0
        self.picks: dict[str, list[dict[str, Any]]] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.explanation: dict[str, Any] = {}
        self.scores: dict[str, dict[str, Any]] = {}

    def apply_endpoints(self, service: str, endpoints: bytes) -> int:
        if reason := self.refuse.pop(service, ""):
            raise ConfigError("endpoints", reason)
        state = self._services[service]
        # As in the data plane: an endpoint that stays keeps its identity and its counters.
        known = {e["address"]: row for e, row in zip(state.listed, state.table, strict=True)}
        state.listed = json.loads(endpoints)["endpoints"]
        table = np.zeros(len(state.listed), ENDPOINT_DTYPE)
        for index, entry in enumerate(state.listed):
            if entry["address"] in known:
                table[index] = known[entry["address"]]
            row = table[index]
            if not row["id"]:
                row["id"] = self._next_id
                self._next_id += 1
            row["static_weight"] = entry["static_weight"]
            row["usable"] = entry["static_weight"] > 0
        usable = table["usable"].sum()
        table["weight"] = table["usable"] / max(usable, 1)
        state.table = table
        state.epoch += 1
        return state.epoch

    def add(self, service: str, *addresses: str) -> None:
        """Replaces the set of a service by these, with static weight 1."""
        listed = [
            {"address": address, "static_weight": 1.0, "zone": "", "labels": {}}
            for address in addresses
        ]
        self.apply_endpoints(service, json.dumps({"endpoints": listed}).encode())

    def set(self, service: str, index: int, **columns: float) -> None:
        """Changes a row."""
        for name, value in columns.items():
            self._services[service].table[index][name] = value

    def recorded_picks(self, service: str, after: int, count: int) -> tuple[bytes, int, int]:
        kept = list(enumerate(self.picks.get(service, []), 1))[-PICKS_KEPT:]
        rows = [{**row, "number": number} for number, row in kept if number > after]
        return json.dumps(rows[:count]).encode(), len(self.picks.get(service, [])), 0

    def scores_in_force(self, service: str) -> bytes:
        return json.dumps(self.scores.get(service)).encode()

    def explain(self, service: str, question: bytes) -> bytes:
        self.asked.append((service, json.loads(question)))
        return json.dumps(self.explanation).encode()

    def endpoints(self, service: str) -> tuple[int, bytes]:
        self.lists_taken += 1
        state = self._find(service)
        return state.epoch, json.dumps(state.listed).encode()

    def snapshot(self, service: str) -> tuple[int, bytes]:
        self.snapshots_taken += 1
        state = self._find(service)
        return state.epoch, state.table.tobytes()

    def reported(self, service: str, endpoint: str, report: bytes) -> bool:
        known = any(entry["address"] == endpoint for entry in self._find(service).listed)
        if known:
            self.reports.append((service, endpoint, report))
        return known

    def _find(self, service: str) -> _Service:
        if service not in self._services:
            raise ConfigError("service", f"no service `{service}`")
        return self._services[service]


def spec(address: str, **others: Any) -> Mapping[str, Any]:
    """An endpoint as the boundary has it."""
    return {"address": address, "static_weight": 1.0, "zone": "", "labels": {}, **others}
