"""A router as ONNX: the same numbers as torch, at every shape, and nothing else let through."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import onnx
import pytest
import torch
from tests.unit.model.test_network import trained

from attnroute.bundle import GRAPHS, OPSET, Bundle
from attnroute.features.schema import schema_hash
from attnroute.model import export
from attnroute.model.export import (
    PARITY,
    ExportError,
    bundle_of,
    export_graphs,
    parity,
    rank_agreement,
    router_of,
    run_graphs,
    with_int8,
    with_weights,
)
from attnroute.model.network import Router, RouterConfig


@pytest.fixture(scope="module")
def graphs() -> dict[str, bytes]:
    """Exported once: it takes seconds."""
    return export_graphs(Router())


def bundle(graphs: dict[str, bytes], router: Router) -> Bundle:
    return bundle_of(
        router, name="t", version="1.0.0", trained={}, metrics={}, card="", graphs=graphs
    )


def test_graphs_are_what_bundles_promise(graphs: dict[str, bytes]) -> None:
    for name, (takes, gives) in GRAPHS.items():
        model = onnx.load_from_string(graphs[name])
        onnx.checker.check_model(model, full_check=True)
        assert [one.name for one in model.graph.input] == list(takes)
        assert [one.name for one in model.graph.output] == list(gives)
        assert {one.domain: one.version for one in model.opset_import}[""] == OPSET
        sizes = {
            dim.dim_param
            for one in model.graph.input
            for dim in one.type.tensor_type.shape.dim
            if dim.dim_param
        }
        assert sizes <= {"C", "E"}
        assert sizes, "sizes are symbols"
        assert str(torch.__file__).rsplit("/", 2)[0].encode() not in graphs[name]
    assert sum(map(len, graphs.values())) < 200_000


def test_onnxruntime_says_what_torch_says(graphs: dict[str, bytes]) -> None:
    """Of 1 endpoint, of 1,000, with some, all but one and all of them masked."""
    router = trained()
    with torch.no_grad():
        router.score.temperature.fill_(0.7)
    made = with_weights(graphs, router)
    assert parity(made, router) <= PARITY
    assert parity(graphs, router) > 0.01, "the graphs before are another model"


def test_a_lost_parity_is_refused(graphs: dict[str, bytes]) -> None:
    model = onnx.load_from_string(graphs["score.onnx"])
    for node in model.graph.node:
        if node.op_type == "Tanh":
            node.op_type = "Sigmoid"
    broken = {**graphs, "score.onnx": model.SerializeToString()}
    with pytest.raises(ExportError, match="away from torch"):
        with_weights(broken, trained())


def test_graphs_of_another_shape_have_no_place(graphs: dict[str, bytes]) -> None:
    with pytest.raises(ExportError, match=r"no place for `.*`; export the graphs anew|no place"):
        with_weights(graphs, Router(RouterConfig(heads=2)))


def test_a_model_that_says_nan_is_refused(graphs: dict[str, bytes]) -> None:
    router = trained()
    with torch.no_grad():
        router.score.decide.bias[0] = float("nan")
    with pytest.raises(ExportError, match="inf away from torch"):
        with_weights(graphs, router)


def test_a_bundle_names_its_features_and_answers_its_probe(graphs: dict[str, bytes]) -> None:
    made = bundle(graphs, trained())
    assert made.manifest.feature_schema == schema_hash()
    assert made.manifest.metrics["parity"] <= PARITY
    again = run_graphs(made.graphs, made.probe.inputs)
    for name, value in made.probe.outputs.items():
        assert (again[name] == value).all()


def test_int8_comes_along_if_its_ranks_agree(
    graphs: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_flavour, agreement = with_int8(bundle(graphs, Router()))
    assert agreement == 1.0
    assert "score.int8.onnx" in with_flavour.graphs
    assert with_flavour.graphs["score.onnx"] == bundle(graphs, Router()).graphs["score.onnx"]
    monkeypatch.setattr(export, "RANKS_MIN", 1.01)
    without, agreement = with_int8(bundle(graphs, trained()))
    assert without.graphs.keys() == GRAPHS.keys()
    assert without.manifest.metrics["int8_rank_agreement"] == agreement


def test_rank_agreement_by_hand() -> None:
    expected = np.array([[1.0, 2.0], [1.0, 1.04], [1.0, 2.0]])
    found = np.array([[5.0, 6.0], [2.0, 1.0], [2.0, 1.0]])
    assert rank_agreement(found, expected) == pytest.approx(2 / 3)


def test_training_goes_on_from_the_numbers_of_a_bundle(graphs: dict[str, bytes]) -> None:
    router = trained()
    with torch.no_grad():
        router.score.temperature.fill_(0.7)
    made = bundle(graphs, router)
    again = router_of(made)
    for name, value in router.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    assert again.config == router.config


def test_a_bundle_of_another_network_is_not_trained_from(graphs: dict[str, bytes]) -> None:
    made = bundle(graphs, trained())
    other = {**made.manifest.trained, "shape": {**asdict(RouterConfig()), "values": 3}}
    with pytest.raises(ExportError, match=r"`t/1.0.0`: `encode_endpoints.onnx` is of another"):
        router_of(replace(made, manifest=replace(made.manifest, trained=other)))
    with pytest.raises(ExportError, match=r"`t/1.0.0` does not say the shape"):
        router_of(replace(made, manifest=replace(made.manifest, trained={})))
