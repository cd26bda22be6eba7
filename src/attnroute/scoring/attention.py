"""The attention router as a scorer: a bundle's graphs on onnxruntime.

`Model` is a bundle that may be run: its sessions are made and tried on the bundle's own probe
before anybody relies on it, off the path that serves, because making a session holds the
interpreter. `AttentionScorer` scores one service by it: features of endpoints and classes are
encoded once and kept (`kv_table`), then one run answers for all live classes at once.

onnxruntime is imported when the first model is made: a sidecar without one does not pay for it. One
thread, no spinning: the machine belongs to the data threads (microsoft/onnxruntime#29510).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attnroute.bundle import GRAPHS, Bundle, Tensors
from attnroute.errors import BundleError
from attnroute.features.extract import extract
from attnroute.features.schema import CLASS_FEATURES, ENDPOINT_FEATURES, PAIR_FEATURES
from attnroute.scoring.base import Scored, ScorerInfo, ScoringInput
from attnroute.scoring.kv_table import Encodings, KvTable

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["KV_ROWS", "AttentionScorer", "Model", "Scale"]

Matrix = npt.NDArray[np.float32]

KV_ROWS = 4096
"""Endpoint encodings that are kept for a service, and as many of classes."""

INT8_RANKS_MIN = 0.97
"""Share of the probe's classes whose fastest endpoint the int8 graphs must leave within 5 %."""

TRIED_SIZES = ((1, 1), (3, 2), (3, 64))
"""Classes and endpoints that a model is tried with: what was traced with one size may know only
that one (MD-06)."""

TIMED_RUNS = 3

_SCORE_INPUTS, _SCORE_OUTPUTS = GRAPHS["score.onnx"]

_RANKS: Mapping[str, int] = {
    "endpoint": 2, "request_class": 2, "query": 3, "key": 3, "value": 2, "pair": 3,
    "table_cost_s": 2, "rtt_s": 1, "mask": 1, "cost_s": 2, "spread": 2, "probability": 2,
}  # fmt: skip

_WIDTHS: Mapping[str, int] = {
    "endpoint": len(ENDPOINT_FEATURES),
    "request_class": len(CLASS_FEATURES),
    "pair": len(PAIR_FEATURES),
}
"""Last dimension of what features go into."""


@dataclass(frozen=True)
class Scale:
    """A size of service: what a model's time is measured at."""

    classes: int = 64
    endpoints: int = 100


class Model:
    """A bundle that was tried; safe to use from one thread at a time.

    int8: whether to use the bundle's int8 graphs where it has them and they agree with the others.
    Raises BundleError where the graphs do not do what they should.
    """

    def __init__(self, bundle: Bundle, *, int8: bool = False) -> None:
        manifest = bundle.manifest
        self.name = manifest.name
        self.version = manifest.version
        self.feature_schema = manifest.feature_schema
        self.reference = f"{manifest.name} {manifest.version}"
        began_s = time.perf_counter()
        self._sessions = {name: self._session(name, bundle.graphs[name]) for name in GRAPHS}
        self._try_sizes()
        self._try_probe(bundle)
        self.flavour = "float32"
        if int8 and self._takes_int8(bundle):
            self.flavour = "int8"
        self.run_s = 0.0
        """CPU time that a run takes, as `time_runs` found."""
        self.made_s = time.perf_counter() - began_s
        """How long it took to make and try it."""

    def encode_endpoints(self, endpoint: Matrix) -> Encodings:
        """[E, Fe] to key [E, H, D] and value [E, V]."""
        return self._run("encode_endpoints.onnx", {"endpoint": endpoint})

    def encode_classes(self, request_class: Matrix) -> Encodings:
        """[C, Fc] to query [C, H, D]."""
        return self._run("encode_classes.onnx", {"request_class": request_class})

    def score(self, inputs: Tensors) -> dict[str, Matrix]:
        """Inputs of `score.onnx` to its outputs, by name."""
        return dict(zip(_SCORE_OUTPUTS, self._run("score.onnx", inputs), strict=True))

    def all_at_once(self, features: Tensors) -> dict[str, Matrix]:
        """Features to times, spreads and probabilities, without any cache: inputs and outputs of a
        probe."""
        inputs = {name: features[name] for name in _SCORE_INPUTS if name in features}
        inputs["key"], inputs["value"] = self.encode_endpoints(features["endpoint"])
        (inputs["query"],) = self.encode_classes(features["request_class"])
        return self.score(inputs)

    def time_runs(self, scale: Scale = Scale(), *, enough_s: float = float("inf")) -> float:
        """Seconds of CPU that a run of that size takes, the best of a few: a busy machine is no
        fault of the model's. Warms what onnxruntime makes at a first run; one that takes more than
        enough is not run again."""
        features = _features(scale.classes, scale.endpoints)
        taken: list[float] = []
        while len(taken) < TIMED_RUNS and not any(one > enough_s for one in taken[1:]):
            began_s = time.thread_time()
            self.all_at_once(features)
            taken.append(time.thread_time() - began_s)
        self.run_s = min(taken)
        return self.run_s

    # Making.

    def _session(self, name: str, graph: bytes) -> onnxruntime.InferenceSession:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        # An arena keeps the largest run's memory for ever; a run is once a second.
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                graph, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the library has one kind for each way to be wrong
            raise BundleError(
                f"{self.reference}: onnxruntime {onnxruntime.__version__} does not take `{name}`: "
                f"{_first_line(error)}; export it with this version of attnroute"
            ) from error
        self._check_signature(name, session)
        return session

    def _check_signature(self, name: str, session: onnxruntime.InferenceSession) -> None:
        for kind, found, expected in (
            ("inputs", session.get_inputs(), GRAPHS[name][0]),
            ("outputs", session.get_outputs(), GRAPHS[name][1]),
        ):
            names = tuple(one.name for one in found)
            if sorted(names) != sorted(expected):
                raise BundleError(
                    f"{self.reference}: `{name}` has the {kind} {', '.join(names)}, expected "
                    f"{', '.join(expected)}; export it with this version of attnroute"
                )
            for one in found:
                self._check_tensor(name, one)

    def _check_tensor(self, name: str, tensor: Any) -> None:
        rank, width = _RANKS[tensor.name], _WIDTHS.get(tensor.name)
        if tensor.type != "tensor(float)":
            problem = f"is `{tensor.type}`, expected `tensor(float)`"
        elif tensor.shape and len(tensor.shape) != rank:
            problem = f"has shape {tensor.shape}, expected {rank} dimensions"
        elif tensor.shape and width is not None and tensor.shape[-1] not in (width, None):
            problem = f"has shape {tensor.shape}, expected {width} features"
        else:
            return
        raise BundleError(
            f"{self.reference}: `{tensor.name}` of `{name}` {problem}; export it with this version "
            "of attnroute"
        )

    def _run(self, name: str, inputs: Tensors) -> Encodings:
        return tuple(self._sessions[name].run(list(GRAPHS[name][1]), dict(inputs)))

    def _try_sizes(self) -> None:
        for classes, endpoints in TRIED_SIZES:
            features = _features(classes, endpoints)
            size = f"{classes} classes and {endpoints} endpoints"
            try:
                found = self.all_at_once(features)
            except Exception as error:  # as in `_session`
                raise BundleError(
                    f"{self.reference}: it fails with {size}: {_first_line(error)}; export it with "
                    "symbolic sizes"
                ) from error
            for name, value in found.items():
                if value.shape != (classes, endpoints):
                    raise BundleError(
                        f"{self.reference}: `{name}` has shape {value.shape} with {size}, expected "
                        f"{(classes, endpoints)}; export it with symbolic sizes"
                    )
            self._check_values(found, size)

    def _check_values(self, found: Tensors, what: str) -> None:
        for name, value in found.items():
            if not np.isfinite(value).all() or (value < 0).any():
                raise BundleError(
                    f"{self.reference}: `{name}` is negative or not finite with {what}; train it "
                    "again"
                )
        sums = found["probability"].sum(axis=1)
        if not np.allclose(sums, 1.0, atol=1e-3):
            raise BundleError(
                f"{self.reference}: rows of `probability` sum to {sums.min():.4f} and "
                f"{sums.max():.4f} with {what}, expected 1; export it again"
            )

    def _try_probe(self, bundle: Bundle) -> None:
        found = self.all_at_once(bundle.probe.inputs)
        self._check_values(found, "its own probe")
        tolerance = bundle.manifest.tolerance
        for name, expected in bundle.probe.outputs.items():
            off = np.abs(found[name] - expected) / np.maximum(np.abs(expected), 1e-6)
            if not float(off.max(initial=0.0)) <= tolerance:
                raise BundleError(
                    f"{self.reference}: `{name}` of its probe is off by {off.max():.2g}, at most "
                    f"{tolerance:.2g} is allowed; the graphs are not those that were trained: "
                    "export the bundle again"
                )

    def _takes_int8(self, bundle: Bundle) -> bool:
        """Changes to the int8 graphs if all of them are there and rank as the others do."""
        names = {name: name.replace(".onnx", ".int8.onnx") for name in GRAPHS}
        if not all(one in bundle.graphs for one in names.values()):
            return False
        exact = self._sessions
        self._sessions = {
            name: self._session(name, bundle.graphs[one]) for name, one in names.items()
        }
        found = self.all_at_once(bundle.probe.inputs)["cost_s"]
        expected = bundle.probe.outputs["cost_s"]
        chosen = np.take_along_axis(expected, found.argmin(axis=1)[:, None], axis=1)[:, 0]
        agreement = float((chosen <= 1.05 * expected.min(axis=1)).mean())
        if agreement >= INT8_RANKS_MIN:
            return True
        self._sessions = exact
        return False


class AttentionScorer:
    """Scores one service by a model (attnroute.scoring.base.Scorer). kv_rows: encodings that are
    kept, of endpoints and as many of classes."""

    def __init__(self, model: Model, *, kv_rows: int = KV_ROWS) -> None:
        self.model = model
        self.endpoints = KvTable(model.encode_endpoints, kv_rows)
        self.classes = KvTable(model.encode_classes, kv_rows)
        self.info = ScorerInfo(
            name="attention",
            version=model.version,
            feature_schema=model.feature_schema,
            expected_latency_s=max(model.run_s, 1e-4),
            cost_s=model.run_s,
        )

    def score(self, given: ScoringInput) -> Scored:
        """attnroute.scoring.base.Scorer."""
        if given.facts is None:
            raise ValueError("the attention router needs facts")
        features = extract(given.facts).tensors()
        inputs = {name: features[name] for name in _SCORE_INPUTS if name in features}
        inputs["key"], inputs["value"] = self.endpoints.look_up(features["endpoint"])
        (inputs["query"],) = self.classes.look_up(features["request_class"])
        found = self.model.score(inputs)
        return Scored(
            cost_s=found["cost_s"].astype(np.float64),
            probability=found["probability"].astype(np.float64),
            spread=found["spread"].astype(np.float64),
            confidence=np.ones(found["cost_s"].shape),
        )


def _features(classes: int, endpoints: int) -> dict[str, Matrix]:
    """Features of that many, within what the schema allows; the same each time."""
    rng = np.random.default_rng((classes, endpoints))

    def some(*shape: int) -> Matrix:
        return rng.uniform(-1.0, 1.0, shape).astype(np.float32)

    return {
        "endpoint": some(endpoints, len(ENDPOINT_FEATURES)),
        "request_class": some(classes, len(CLASS_FEATURES)),
        "pair": some(classes, endpoints, len(PAIR_FEATURES)),
        "table_cost_s": np.exp(some(classes, endpoints) - 4.0),
        "rtt_s": np.full(endpoints, 1e-3, dtype=np.float32),
        "mask": np.ones(endpoints, dtype=np.float32),
    }


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
