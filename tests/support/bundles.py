"""Bundles with real graphs, made by the package `onnx`: the smallest that do what GRAPHS says."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from attnroute.bundle import GRAPHS, OPSET, Bundle, Manifest, Probe
from attnroute.features.schema import CLASS_FEATURES, ENDPOINT_FEATURES, PAIR_FEATURES

__all__ = ["SCHEMA", "graph_bytes", "make_bundle", "probe", "version"]

SCHEMA = "5c" * 32
HEADS, WIDTH, VALUES = 2, 3, 4
FEATURES = {
    "endpoint": len(ENDPOINT_FEATURES),
    "request_class": len(CLASS_FEATURES),
    "pair": len(PAIR_FEATURES),
}


def _tensor(name: str, shape: list[str | int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _save(graph: onnx.GraphProto, opset: int) -> bytes:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _encoder(
    source: str, rows: str, targets: Mapping[str, list[int]], seed: int, opset: int
) -> bytes:
    """One matrix product for each target."""
    draw = np.random.default_rng(seed)
    nodes, weights = [], []
    for target, shape in targets.items():
        matrix = draw.normal(0, 0.1, (FEATURES[source], int(np.prod(shape)))).astype(np.float32)
        weights += [
            numpy_helper.from_array(matrix, f"{target}_weight"),
            numpy_helper.from_array(np.array([-1, *shape], np.int64), f"{target}_shape"),
        ]
        nodes += [
            helper.make_node("MatMul", [source, f"{target}_weight"], [f"{target}_flat"]),
            helper.make_node("Reshape", [f"{target}_flat", f"{target}_shape"], [target]),
        ]
    outputs = [_tensor(target, [rows, *shape]) for target, shape in targets.items()]
    inputs = [_tensor(source, [rows, FEATURES[source]])]
    return _save(helper.make_graph(nodes, "encoder", inputs, outputs, weights), opset)


def _score(opset: int) -> bytes:
    """The table's cost stays; equal probabilities over who is usable. Every input has a say of
    nothing, so that none is left out."""
    zero = [numpy_helper.from_array(np.zeros(1, np.float32), "zero")]
    zero.append(numpy_helper.from_array(np.array([1, 2], np.int64), "two_axes"))
    zero.append(numpy_helper.from_array(np.array([2], np.int64), "last_axis"))
    nodes = [
        helper.make_node("ReduceSum", ["query", "two_axes"], ["query_sum"], keepdims=0),
        helper.make_node("ReduceSum", ["key", "two_axes"], ["key_sum"], keepdims=0),
        helper.make_node("ReduceSum", ["value"], ["value_sum"], keepdims=0),
        helper.make_node("ReduceSum", ["pair", "last_axis"], ["pair_sum"], keepdims=0),
        helper.make_node("Mul", ["pair_sum", "zero"], ["nothing_0"]),
        helper.make_node("Mul", ["key_sum", "zero"], ["nothing_1"]),
        helper.make_node("Mul", ["value_sum", "zero"], ["nothing_2"]),
        helper.make_node("ReduceSum", ["query_sum"], ["query_total"], keepdims=0),
        helper.make_node("Mul", ["query_total", "zero"], ["nothing_3"]),
        helper.make_node("Mul", ["rtt_s", "zero"], ["nothing_4"]),
        helper.make_node(
            "Sum",
            ["nothing_0", "nothing_1", "nothing_2", "nothing_3", "nothing_4"],
            ["nothing"],
        ),
        helper.make_node("Add", ["table_cost_s", "nothing"], ["cost_s"]),
        helper.make_node("Add", ["nothing", "half"], ["spread"]),
        helper.make_node("Add", ["nothing", "mask"], ["masked"]),
        helper.make_node("ReduceSum", ["mask"], ["usable"], keepdims=0),
        helper.make_node("Div", ["masked", "usable"], ["probability"]),
    ]
    zero.append(numpy_helper.from_array(np.full(1, 0.5, np.float32), "half"))
    inputs = [
        _tensor("query", ["C", HEADS, WIDTH]),
        _tensor("key", ["E", HEADS, WIDTH]),
        _tensor("value", ["E", VALUES]),
        _tensor("pair", ["C", "E", FEATURES["pair"]]),
        _tensor("table_cost_s", ["C", "E"]),
        _tensor("rtt_s", ["E"]),
        _tensor("mask", ["E"]),
    ]
    outputs = [_tensor(name, ["C", "E"]) for name in GRAPHS["score.onnx"][1]]
    return _save(helper.make_graph(nodes, "score", inputs, outputs, zero), opset)


def graph_bytes(*, seed: int = 0, opset: int = OPSET) -> dict[str, bytes]:
    """The three graphs; another seed gives other weights."""
    return {
        "encode_endpoints.onnx": _encoder(
            "endpoint", "E", {"key": [HEADS, WIDTH], "value": [VALUES]}, seed, opset
        ),
        "encode_classes.onnx": _encoder(
            "request_class", "C", {"query": [HEADS, WIDTH]}, seed + 1, opset
        ),
        "score.onnx": _score(opset),
    }


def probe(*, classes: int = 3, endpoints: int = 4, seed: int = 0) -> Probe:
    """A batch with the outputs that the graphs above give for it."""
    draw = np.random.default_rng(seed)

    def random(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return draw.random(shape, np.float32)

    cost_s = random(classes, endpoints)
    return Probe(
        {
            "endpoint": random(endpoints, FEATURES["endpoint"]),
            "request_class": random(classes, FEATURES["request_class"]),
            "pair": random(classes, endpoints, FEATURES["pair"]),
            "table_cost_s": cost_s,
            "rtt_s": random(endpoints),
            "mask": np.ones(endpoints, np.float32),
        },
        {
            "cost_s": cost_s,
            "spread": np.full_like(cost_s, 0.5),
            "probability": np.full_like(cost_s, 1 / endpoints),
        },
    )


def version(number: int) -> str:
    """The n-th version of one schema."""
    return f"1.0.{number}"


def make_bundle(
    version: str = "1.0.0",
    *,
    name: str = "default",
    schema: str = SCHEMA,
    seed: int = 0,
    opset: int = OPSET,
) -> Bundle:
    """A whole bundle in memory."""
    return Bundle(
        Manifest(
            name=name,
            version=version,
            feature_schema=schema,
            opset=opset,
            tolerance=1e-4,
            created_s=1_700_000_000.0,
            trained={"seed": seed, "command": "tests"},
            metrics={"gain": 0.01},
        ),
        graph_bytes(seed=seed, opset=opset),
        probe(seed=seed),
        f"# {name} {version}\n",
    )
