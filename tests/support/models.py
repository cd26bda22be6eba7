"""Small bundles whose answers can be worked out by hand, made without training.

Their S is S0 times (S0/cm)^gain: 0 says what the table says, -1 the class's mean everywhere, which
is right where endpoints are equal and better than a table of few calls; 1 exaggerates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from attnroute import bundle
from attnroute.bundle import GRAPHS, OPSET, Bundle, Manifest, Probe
from attnroute.features.schema import (
    CLASS_FEATURES,
    ENDPOINT_FEATURES,
    PAIR_FEATURES,
    schema_hash,
)

Matrix = npt.NDArray[np.float32]

HEADS, WIDTH, VALUES = 2, 2, 3
COST_COLUMN = [one.name for one in PAIR_FEATURES].index("ratio")
"""Of `pair`: ln(S0/cm)."""
SPREAD = 0.4

_SHAPES: dict[str, list[Any]] = {
    "endpoint": ["E", len(ENDPOINT_FEATURES)],
    "request_class": ["C", len(CLASS_FEATURES)],
    "query": ["C", HEADS, WIDTH],
    "key": ["E", HEADS, WIDTH],
    "value": ["E", VALUES],
    "pair": ["C", "E", len(PAIR_FEATURES)],
    "table_cost_s": ["C", "E"],
    "rtt_s": ["E"],
    "mask": ["E"],
    "cost_s": ["C", "E"],
    "spread": ["C", "E"],
    "probability": ["C", "E"],
}


def graph(
    name: str,
    nodes: list[onnx.NodeProto],
    constants: dict[str, npt.NDArray[Any]],
    *,
    shapes: dict[str, list[Any]] | None = None,
    types: dict[str, int] | None = None,
) -> bytes:
    """One of GRAPHS as bytes. shapes, types: other ones than they should have."""
    known, kinds = _SHAPES | (shapes or {}), types or {}

    def tensors(names: tuple[str, ...]) -> list[onnx.ValueInfoProto]:
        return [
            helper.make_tensor_value_info(one, kinds.get(one, TensorProto.FLOAT), known[one])
            for one in names
        ]

    made = helper.make_graph(
        nodes,
        name.removesuffix(".onnx"),
        tensors(GRAPHS[name][0]),
        tensors(GRAPHS[name][1]),
        [numpy_helper.from_array(value, key) for key, value in constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return bytes(model.SerializeToString())


def _weights(seed: int, *shape: int) -> Matrix:
    return np.random.default_rng(seed).normal(0.0, 0.3, shape).astype(np.float32)


def encode_endpoints() -> bytes:
    node = helper.make_node
    return graph(
        "encode_endpoints.onnx",
        [
            node("MatMul", ["endpoint", "wk"], ["flat"]),
            node("Reshape", ["flat", "heads"], ["key"]),
            node("MatMul", ["endpoint", "wv"], ["value"]),
        ],
        {
            "wk": _weights(1, len(ENDPOINT_FEATURES), HEADS * WIDTH),
            "wv": _weights(2, len(ENDPOINT_FEATURES), VALUES),
            "heads": np.array([-1, HEADS, WIDTH]),
        },
    )


def encode_classes() -> bytes:
    node = helper.make_node
    return graph(
        "encode_classes.onnx",
        [
            node("MatMul", ["request_class", "wq"], ["flat"]),
            node("Reshape", ["flat", "heads"], ["query"]),
        ],
        {
            "wq": _weights(3, len(CLASS_FEATURES), HEADS * WIDTH),
            "heads": np.array([-1, HEADS, WIDTH]),
        },
    )


def score(gain: float, *, work: int = 0, **others: Any) -> bytes:
    """work: side of a matrix that is multiplied by itself besides, which takes time."""
    node = helper.make_node
    nodes = [
        node("Gather", ["pair", "column"], ["relative"], axis=2),
        node("Mul", ["relative", "gain"], ["delta"]),
        node("Exp", ["delta"], ["factor"]),
        node("Mul", ["table_cost_s", "factor"], ["cost_s"]),
        node("Mul", ["cost_s", "zero"], ["nothing"]),
        node("Add", ["nothing", "sigma"], ["spread"]),
        node("Add", ["table_cost_s", "rtt_s"], ["time"]),
        node("Log", ["time"], ["log"]),
        node("Mul", ["log", "steep"], ["logits"]),
        node("Sub", ["mask", "one"], ["less"]),
        node("Mul", ["less", "far"], ["away"]),
        node("Add", ["logits", "away"], ["masked"]),
        node("Softmax", ["masked"], ["probability"], axis=1),
    ]
    constants: dict[str, npt.NDArray[Any]] = {
        "column": np.array(COST_COLUMN),
        "gain": np.array(gain, dtype=np.float32),
        "zero": np.array(0, dtype=np.float32),
        "sigma": np.array(SPREAD, dtype=np.float32),
        "steep": np.array(-1.5, dtype=np.float32),
        "one": np.array(1, dtype=np.float32),
        "far": np.array(1e9, dtype=np.float32),
    }
    if work:
        # From the input, so that it is not worked out beforehand.
        nodes[3:4] = [
            node("ReduceSum", ["rtt_s"], ["some"], keepdims=0),
            node("ConstantOfShape", ["side"], ["ones"]),
            node("Add", ["ones", "some"], ["big"]),
            node("MatMul", ["big", "big"], ["bigger"]),
            node("ReduceMax", ["bigger"], ["most"], keepdims=0),
            node("Mul", ["most", "zero"], ["none"]),
            node("Mul", ["table_cost_s", "factor"], ["plain"]),
            node("Add", ["plain", "none"], ["cost_s"]),
        ]
        constants["side"] = np.array([work, work])
    return graph("score.onnx", nodes, constants, **others)


def probe(gain: float, classes: int = 3, endpoints: int = 5) -> Probe:
    """A batch with the outputs by numpy."""
    rng = np.random.default_rng(7)

    def some(*shape: int) -> Matrix:
        return rng.uniform(-1.0, 1.0, shape).astype(np.float32)

    inputs = {
        "endpoint": some(endpoints, len(ENDPOINT_FEATURES)),
        "request_class": some(classes, len(CLASS_FEATURES)),
        "pair": some(classes, endpoints, len(PAIR_FEATURES)),
        "table_cost_s": np.exp(some(classes, endpoints) - 4),
        "rtt_s": np.full(endpoints, 1e-3, dtype=np.float32),
        "mask": np.array([1.0] * (endpoints - 1) + [0.0], dtype=np.float32),
    }
    table_s = inputs["table_cost_s"].astype(np.float64)
    shares = (table_s + inputs["rtt_s"]) ** -1.5 * inputs["mask"]
    relative = inputs["pair"][:, :, COST_COLUMN]
    outputs = {
        "cost_s": table_s * np.exp(gain * relative),
        "spread": np.full(table_s.shape, SPREAD),
        "probability": shares / shares.sum(axis=1, keepdims=True),
    }
    return Probe(inputs, {name: value.astype(np.float32) for name, value in outputs.items()})


def small_bundle(
    version: str = "1.0.0",
    gain: float = 0.0,
    *,
    change: Callable[[Bundle], Bundle] = lambda made: made,
    work: int = 0,
) -> Bundle:
    """A bundle in memory; change: what is wrong with it."""
    manifest = Manifest(
        name="default",
        version=version,
        feature_schema=schema_hash(),
        opset=OPSET,
        tolerance=1e-3,
        created_s=1.7e9,
        trained={"by": "hand"},
        metrics={"parity": 0.0},
    )
    graphs = {
        "encode_endpoints.onnx": encode_endpoints(),
        "encode_classes.onnx": encode_classes(),
        "score.onnx": score(gain, work=work),
    }
    return change(Bundle(manifest, graphs, probe(gain), "made by hand\n"))


def with_graph(name: str, content: bytes) -> Callable[[Bundle], Bundle]:
    """A change: another graph in the place of one."""
    return lambda made: replace(made, graphs={**made.graphs, name: content})


def write_small(directory: Path, version: str = "1.0.0", gain: float = 0.0, **others: Any) -> Path:
    """Writes `directory/default/<version>` and returns it."""
    return bundle.write(directory, small_bundle(version, gain, **others))


def lying_bundle(fault: str, version: str = "6.6.6") -> Bundle:
    """A bundle that does what its own probe says, and lies: `random`, `permuted`, `inverted`,
    `collapsing` (two endpoints 50 times too fast), `nan` (where S0 is below 5 ms, so that its probe
    and what it is tried with are fine)."""
    node = helper.make_node
    constants: dict[str, npt.NDArray[Any]] = {}
    if fault == "random":
        nodes = [
            node("RandomNormalLike", ["table_cost_s"], ["some"], mean=0.0, scale=2.0),
            node("Exp", ["some"], ["factor"]),
            node("Mul", ["table_cost_s", "factor"], ["cost_s"]),
        ]
    elif fault == "permuted":
        constants = {
            "start": np.array([-1]), "end": np.array([-(2**31)]), "axis": np.array([1]),
            "step": np.array([-1]),
        }  # fmt: skip
        nodes = [node("Slice", ["table_cost_s", "start", "end", "axis", "step"], ["cost_s"])]
    elif fault == "inverted":
        return small_bundle(version, gain=-2.0)
    elif fault == "collapsing":
        constants = {
            "row": np.array([0]), "first": np.array([1]), "one": np.array(1, dtype=np.float32),
            "axis": np.array(0), "exclusive": np.array(2, dtype=np.float32),
            "little": np.array(0.02, dtype=np.float32),
        }  # fmt: skip
        nodes = [
            # 1, 2, 3 ... over endpoints; up to 2 they are the chosen ones.
            node("Sub", ["rtt_s", "rtt_s"], ["nothing_e"]),
            node("Add", ["nothing_e", "one"], ["ones"]),
            node("CumSum", ["ones", "axis"], ["number"]),
            node("LessOrEqual", ["number", "exclusive"], ["chosen"]),
            node("Where", ["chosen", "little", "one"], ["factor"]),
            node("Mul", ["table_cost_s", "factor"], ["cost_s"]),
        ]
    else:
        assert fault == "nan", fault
        constants = {"bound": np.array(5e-3, dtype=np.float32),
                     "none": np.array(np.nan, dtype=np.float32)}  # fmt: skip
        nodes = [
            node("Less", ["table_cost_s", "bound"], ["below"]),
            node("Where", ["below", "none", "table_cost_s"], ["cost_s"]),
        ]
    made = small_bundle(version)
    inputs = dict(made.probe.inputs)
    graphs = {**made.graphs, "score.onnx": _score_of(nodes, constants)}
    return replace(
        made,
        graphs=graphs,
        probe=Probe(inputs, _run(graphs, inputs)),
        # What is drawn at random is not told twice.
        manifest=replace(made.manifest, tolerance=1e3 if fault == "random" else 1e-3),
    )


def _score_of(nodes: list[onnx.NodeProto], constants: dict[str, npt.NDArray[Any]]) -> bytes:
    """A score graph whose nodes make `cost_s`; everything else as `score` has it."""
    node = helper.make_node
    rest = [
        node("Sub", ["table_cost_s", "table_cost_s"], ["zeros"]),
        node("Add", ["zeros", "sigma"], ["spread"]),
        node("Sub", ["mask", "whole"], ["less"]),
        node("Mul", ["less", "far"], ["away"]),
        node("Add", ["zeros", "away"], ["masked"]),
        node("Softmax", ["masked"], ["probability"], axis=1),
    ]
    return graph(
        "score.onnx",
        [*nodes, *rest],
        {
            "sigma": np.array(SPREAD, dtype=np.float32),
            "whole": np.array(1, dtype=np.float32),
            "far": np.array(1e9, dtype=np.float32),
            **constants,
        },
    )


def _run(graphs: dict[str, bytes], inputs: dict[str, Matrix]) -> dict[str, Matrix]:
    known: dict[str, Matrix] = dict(inputs)
    for name, (takes, gives) in GRAPHS.items():
        session = onnxruntime.InferenceSession(graphs[name], providers=["CPUExecutionProvider"])
        found = session.run(list(gives), {one: known[one] for one in takes})
        known |= dict(zip(gives, found, strict=True))
    return {name: known[name] for name in GRAPHS["score.onnx"][1]}
