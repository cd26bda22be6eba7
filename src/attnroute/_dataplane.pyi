"""Types of the compiled extension; `attnroute.dataplane` is its only importer.

Configuration crosses as JSON bytes (the reference is `crates/dataplane/src/config.rs`), endpoint
sets as full states, telemetry as fixed-layout rows for `numpy.frombuffer`. No callback, no async
bridge, no Python object kept by Rust; every blocking call releases the GIL.
"""

from typing import Final, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "ABI_VERSION",
    "BindError",
    "ConfigError",
    "DataPlane",
    "DataPlaneError",
    "NotRunningError",
    "Picker",
    "Simulation",
    "StaleEpochError",
    "check_balancer",
    "check_scenario",
    "replay",
    "simulate",
]

ABI_VERSION: Final[int]
"""Raised with every incompatible change of this boundary; checked at import."""

class DataPlaneError(Exception): ...

class ConfigError(DataPlaneError):
    """args: (JSON path, message)."""

class BindError(DataPlaneError):
    """args: (listener name, address, where it is configured, operating-system message)."""

class NotRunningError(DataPlaneError): ...

class StaleEpochError(DataPlaneError):
    """Scores for classes or endpoints that are not in force any more; those before stay."""

@final
class DataPlane:
    """Forward path and pickers. Thread-safe; refuses use after fork."""

    def __new__(cls, config: bytes, seed: int, log_format: str = "json") -> DataPlane:
        """Validates, binds nothing, starts no thread. log_format: `json` or `text`."""

    def start(self) -> dict[str, str]:
        """Binds all listeners, starts the data threads. Returns listener name -> bound address."""

    def apply_policy(self, config: bytes) -> int:
        """All or nothing; returns the policy epoch. Services that stay keep their endpoint sets."""

    def bound(self) -> dict[str, str]:
        """Listener name -> bound address, now."""

    def apply_endpoints(self, service: str, endpoints: bytes) -> int:
        """Full set, `{"endpoints": [{"address", "static_weight", "zone", "labels",
        "override"}]}`, override: `drain`, `pin` or null; returns the endpoint epoch, unchanged if
        the set did not change."""

    def endpoints(self, service: str) -> tuple[int, bytes]:
        """(endpoint epoch, JSON list, by index, of {address, static_weight, zone, labels,
        override})."""

    def snapshot(self, service: str) -> tuple[int, bytes]:
        """(endpoint epoch, ENDPOINT_DTYPE rows in index order): live counters, read now."""

    def scores_in_force(self, service: str) -> bytes:
        """JSON of what picks of a `learned` service go by now: {table_epoch, table_age_s or null,
        model, reason, classes: [{request_class, weights, predicted_s, spread}]}, the lists by index
        of the endpoint. No classes while the fallback picks; `null` for a classic balancer."""

    def classes(self, service: str) -> tuple[int, bytes]:
        """(class epoch, JSON list by index of {"class": canonical string, "kind": the same without
        the size, "kind_index", "size_bytes": geometric middle of its bucket or null}); index 0 is
        `other`."""

    def take_window(self, service: str) -> tuple[int, int, int, bytes, bytes]:
        """(endpoint epoch, class epoch, ns since the last take, WINDOW_ENDPOINT_DTYPE rows in
        index order, WINDOW_CELL_DTYPE rows of the cells that changed). For one taker: what was
        taken is gone. Without cells where the policy asks for no request classes."""

    def explain(self, service: str, question: bytes) -> bytes:
        """The pick that would be made now, JSON of crates/dataplane/src/explain.rs: every endpoint
        with what is read of it and every term of its cost, chosen, runner_up, margin_s, reason.
        question: JSON {"method", "message_bytes": int or null, "headers": {name: value}}. Raises
        ConfigError for what is no question."""

    def publish_scores(
        self,
        service: str,
        *,
        endpoint_epoch: int,
        class_epoch: int,
        cost_s: npt.NDArray[np.float32],
        table_cost_s: npt.NDArray[np.float32],
        spread: npt.NDArray[np.float32],
        probability: npt.NDArray[np.float32],
        mean_service_s: npt.NDArray[np.float32],
        concurrency: npt.NDArray[np.float32],
        sidecars: int,
        model: str,
    ) -> int:
        """What `learned` goes by from the next pick on; returns the epoch of the table. S, S0,
        sigma, P are float32[C, E] in the order of the two epochs, C-contiguous, sbar and c
        float32[E]; seconds; rows of P sum to 1, c is at least 1. sidecars: those that call the
        service, this one included; model: the one behind S, empty if S is the table's.
        Raises StaleEpochError, the scores before stay; ValueError for a shape or a value that
        cannot be."""

    def reported(self, service: str, endpoint: str, report: bytes) -> bool:
        """Takes in a serialised `xds.data.orca.v3.OrcaLoadReport` that came out of band. False if
        no endpoint of the service has that address. What is no report is counted as malformed."""

    def metrics(self) -> bytes:
        """Prometheus text, format 0.0.4, of everything the data plane counts."""

    def recorded_picks(self, service: str, after: int, count: int) -> tuple[bytes, int, int]:
        """(JSON list of at most `count` recorded picks of those after that number, oldest first;
        number of the newest one; picks lost so far, of any service). A row has what
        `Decision::describe` in crates/dataplane/src/decisions.rs writes."""

    def take_spans(self, max_rows: int) -> bytes:
        """JSON list of calls that get a span, oldest first, each handed out once. A row has the
        keys of a line of the access log, and `start_ns`, `end_ns` (since 1970-01-01 UTC),
        `trace_parent`, `trace_state` and `grpc_code`."""

    def reopen_logs(self) -> None:
        """Has the access log's file opened anew with its next lines."""

    def pending(self) -> list[str]:
        """What readiness waits for: `listeners`, `endpoints of <service>`; empty when ready."""

    def drain(self, linger_ms: int, limit_ms: int) -> bool:
        """Blocks. Goes on accepting until no client connection has been open for 1 s or linger_ms
        is over, then stops accepting, sends GOAWAY, finishes until limit_ms in all, then answers
        UNAVAILABLE. True if every call finished by itself."""

    def stop(self) -> None:
        """Joins all threads; idempotent; also called at exit."""

@final
class Picker:
    """The same picker without sockets, for the simulator, tests and replay: time is an argument."""

    def __new__(cls, service_config: bytes, seed: int) -> Picker: ...
    def apply_endpoints(self, endpoints: bytes) -> int: ...
    def set_failing(self, index: int, failing: bool) -> None:
        """What the pool reports when connects to an endpoint fail, or succeed again."""
    def pick(
        self,
        now_ns: int,
        request_class: int | None = None,
        key: int | None = None,
        path: str | None = None,
        message_bytes: int | None = None,
    ) -> tuple[int, str]:
        """(endpoint index, reason), counted as in flight until `finished`. request_class: index of
        the class, else path and message_bytes find it. key: hash that `ring_hash` and `maglev` go
        by, 0..2**64.
        Raises DataPlaneError if no endpoint can take a call."""
    def finished(
        self,
        index: int,
        now_ns: int,
        latency_ns: int,
        grpc_status: int,
        report: bytes | None = None,
        push_back_ns: int | None = None,
    ) -> None:
        """Ends the oldest attempt that the endpoint has in flight. report: a serialised
        `xds.data.orca.v3.OrcaLoadReport`; push_back_ns: how long the endpoint asked for a pause.
        Raises ConfigError for an index without an attempt, or a report that is none."""
    def reported(self, index: int, now_ns: int, report: bytes) -> None:
        """Takes in a report out of band."""
    def probes_due(self, now_ns: int) -> list[int]:
        """Endpoints that `prequal` with `probe_source: endpoints` wants probed after a pick."""
    def probed(self, index: int, now_ns: int, inflight: int, latency_ns: int) -> None:
        """Takes in the answer of a probe."""
    def explain(self, question: bytes, now_ns: int | None = None) -> bytes:
        """As `DataPlane.explain`; now_ns: default the latest time that was named."""
    def publish_scores(
        self,
        *,
        endpoint_epoch: int,
        class_epoch: int,
        cost_s: npt.NDArray[np.float32],
        table_cost_s: npt.NDArray[np.float32],
        spread: npt.NDArray[np.float32],
        probability: npt.NDArray[np.float32],
        mean_service_s: npt.NDArray[np.float32],
        concurrency: npt.NDArray[np.float32],
        sidecars: int,
        model: str,
        now_ns: int | None = None,
    ) -> int:
        """As `DataPlane.publish_scores`; now_ns: default the latest time that was named."""
    def classes(self) -> tuple[int, bytes]:
        """As `DataPlane.classes`."""
    def take_window(self, now_ns: int | None = None) -> tuple[int, int, int, bytes, bytes]:
        """As `DataPlane.take_window`; now_ns: default the latest time that was named."""
    def snapshot(self) -> tuple[int, bytes]: ...

@final
class Simulation:
    """A run of a simulation that is driven step by step: its sidecars' windows are taken and scores
    published between steps. How it is cut into steps changes nothing. Thread-safe."""

    def __new__(cls, scenario: bytes, balancer: bytes, seed: int) -> Simulation:
        """As `simulate`. Raises ConfigError."""
    def run_until(self, until_ns: int) -> bool:
        """Plays all that comes before; blocks without the GIL. False if nothing is left to come.
        Like every method, raises DataPlaneError once the run is finished."""
    def endpoints(self, sidecar: int) -> tuple[int, bytes]:
        """As `DataPlane.endpoints`, of one sidecar, from 0."""
    def classes(self, sidecar: int) -> tuple[int, bytes]:
        """As `DataPlane.classes`."""
    def take_window(self, sidecar: int) -> tuple[int, int, int, bytes, bytes]:
        """As `DataPlane.take_window`."""
    def publish_scores(
        self,
        sidecar: int,
        *,
        endpoint_epoch: int,
        class_epoch: int,
        cost_s: npt.NDArray[np.float32],
        table_cost_s: npt.NDArray[np.float32],
        spread: npt.NDArray[np.float32],
        probability: npt.NDArray[np.float32],
        mean_service_s: npt.NDArray[np.float32],
        concurrency: npt.NDArray[np.float32],
        sidecars: int,
        model: str,
    ) -> int:
        """As `DataPlane.publish_scores`."""
    def finish(self) -> bytes:
        """Plays to the end; the JSON that `simulate` returns."""

def replay(record: bytes) -> bytes:
    """Computes a recorded pick of `learned` again, from a row of `DataPlane.recorded_picks`: JSON
    {"chosen", "identical", "differences": [{"address", "recorded_s", "computed_s"}]}. Raises
    ConfigError for what is no such record."""

def check_scenario(scenario: bytes) -> tuple[float, float]:
    """Checks a compiled scenario (`crates/simulator/src/scenario.rs`). Returns calls per second
    that its endpoints can do, and that are offered. Raises ConfigError."""

def check_balancer(balancer: bytes) -> None:
    """Checks `{"type": ...}` as in a compiled policy, or of the oracle. Raises ConfigError."""

def simulate(scenario: bytes, balancer: bytes, seed: int) -> bytes:
    """Plays a scenario once; blocks without the GIL. Returns the JSON of
    `crates/simulator/src/outcome.rs`. Raises ConfigError."""
