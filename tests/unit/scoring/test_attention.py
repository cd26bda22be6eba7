"""Bundles as scorers: what is refused before it serves, what is said, and what a slow one costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.support import models
from tests.support.facts import CLASSES, facts

from attnroute.bundle import Bundle
from attnroute.errors import BundleError
from attnroute.features.facts import Facts
from attnroute.scoring.attention import AttentionScorer, Model, Scale
from attnroute.scoring.base import ScoringInput


def given(known: Facts) -> ScoringInput:
    table = known.table
    return ScoringInput(
        classes=known.classes, endpoints=known.endpoints, table_cost_s=table.cost_s,
        calls=known.sums.den, mean_service_s=table.mean_service_s,
        endpoint_factor=table.endpoint_factor, class_mean_s=table.class_mean_s,
        rtt_s=known.rtt_s, concurrency=known.concurrency, usable=known.usable, facts=known,
    )  # fmt: skip


def test_it_says_what_its_graphs_say() -> None:
    model = Model(models.small_bundle("1.2.3", gain=-1.0))
    scorer = AttentionScorer(model)
    assert (scorer.info.name, scorer.info.version) == ("attention", "1.2.3")
    known = facts()
    scored = scorer.score(given(known))
    means = np.broadcast_to(known.table.class_mean_s[:, None], scored.cost_s.shape)
    np.testing.assert_allclose(scored.cost_s, means, rtol=1e-5)
    np.testing.assert_allclose(scored.spread, models.SPREAD, rtol=1e-6)
    np.testing.assert_allclose(scored.probability.sum(axis=1), 1.0, rtol=1e-5)
    assert (scored.confidence == 1).all()


def test_encodings_are_kept_and_do_not_change_what_is_said() -> None:
    model = Model(models.small_bundle(gain=0.5))
    scorer = AttentionScorer(model)
    known = facts()
    first = scorer.score(given(known))
    assert (scorer.endpoints.misses, scorer.classes.misses) == (5, len(CLASSES))
    again = scorer.score(given(known))
    assert (scorer.endpoints.hits, scorer.endpoints.misses) == (5, 5)
    np.testing.assert_array_equal(again.cost_s, first.cost_s)
    # One endpoint changes: one row is encoded.
    busier = replace(known, inflight=known.inflight + np.eye(5)[2] * 3)
    changed = scorer.score(given(busier))
    assert scorer.endpoints.misses == 6
    np.testing.assert_array_equal(
        changed.cost_s, AttentionScorer(model).score(given(busier)).cost_s
    )


def test_endpoints_that_are_not_usable_have_no_probability() -> None:
    known = replace(facts(), usable=np.array([True, True, False, True, True]))
    scored = AttentionScorer(Model(models.small_bundle())).score(given(known))
    assert (scored.probability[:, 2] == 0).all()


# --- what is refused -----------------------------------------------------------------------------


def _fixed_batch(made: Bundle) -> Bundle:
    shapes: dict[str, list[Any]] = {"endpoint": [1, models._SHAPES["endpoint"][1]]}
    shapes |= {"key": [1, models.HEADS, models.WIDTH], "value": [1, models.VALUES]}
    node = helper.make_node
    graph = models.graph(
        "encode_endpoints.onnx",
        [
            node("MatMul", ["endpoint", "wk"], ["flat"]),
            node("Reshape", ["flat", "heads"], ["key"]),
            node("MatMul", ["endpoint", "wv"], ["value"]),
        ],
        {
            "wk": models._weights(1, models._SHAPES["endpoint"][1], 4),
            "wv": models._weights(2, models._SHAPES["endpoint"][1], models.VALUES),
            "heads": np.array([1, models.HEADS, models.WIDTH]),
        },
        shapes=shapes,
    )
    return models.with_graph("encode_endpoints.onnx", graph)(made)


def _one_feature_more(made: Bundle) -> Bundle:
    width = models._SHAPES["endpoint"][1] + 1
    node = helper.make_node
    graph = models.graph(
        "encode_endpoints.onnx",
        [
            node("MatMul", ["endpoint", "wk"], ["flat"]),
            node("Reshape", ["flat", "heads"], ["key"]),
            node("MatMul", ["endpoint", "wv"], ["value"]),
        ],
        {
            "wk": models._weights(1, width, 4),
            "wv": models._weights(2, width, models.VALUES),
            "heads": np.array([-1, models.HEADS, models.WIDTH]),
        },
        shapes={"endpoint": ["E", width]},
    )
    return models.with_graph("encode_endpoints.onnx", graph)(made)


def _scores(**others: Any) -> Callable[[Bundle], Bundle]:
    return models.with_graph("score.onnx", models.score(0.0, **others))


def _renamed(made: Bundle) -> Bundle:
    graph = made.graphs["score.onnx"].replace(b"rtt_s", b"rtt_x")
    return models.with_graph("score.onnx", graph)(made)


def _other_answers(made: Bundle) -> Bundle:
    return models.with_graph("score.onnx", models.score(0.25))(made)


REFUSED = [
    (_fixed_batch, "fails with 3 classes and 2 endpoints|has shape .* with 3 classes"),
    (_one_feature_more, r"`endpoint` of `encode_endpoints.onnx` has .*, expected \d+ features"),
    (_renamed, "`score.onnx` has the inputs .*rtt_x.*, expected .*rtt_s"),
    (_scores(shapes={"rtt_s": ["E", 1]}), r"`rtt_s` of `score.onnx` has shape .*, expected 1 dim"),
    (_scores(types={"rtt_s": TensorProto.INT64}), "does not take `score.onnx`|expected `tensor"),
    (models.with_graph("score.onnx", b"\x00" * 100), "does not take `score.onnx`"),
    (models.with_graph("score.onnx", models.score(np.nan)), "not finite with 1 classes"),
    (_other_answers, "`cost_s` of its probe is off by"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_a_model_that_does_not_do_what_it_should_is_refused(
    change: Callable[[Bundle], Bundle], message: str
) -> None:
    with pytest.raises(BundleError, match=message) as refused:
        Model(models.small_bundle("1.4.0", change=change))
    assert str(refused.value).startswith("default 1.4.0: ")


def test_a_run_of_many_pairs_is_timed() -> None:
    fast, slow = Model(models.small_bundle()), Model(models.small_bundle(work=600))
    scale = Scale(classes=4, endpoints=6)
    assert slow.time_runs(scale) > 2 * fast.time_runs(scale)


def test_int8_graphs_serve_only_if_they_rank_as_the_others_do() -> None:
    def with_int8(gain: float) -> Callable[[Bundle], Bundle]:
        def change(made: Bundle) -> Bundle:
            fine = {name.replace(".onnx", ".int8.onnx"): one for name, one in made.graphs.items()}
            fine["score.int8.onnx"] = models.score(gain)
            return replace(made, graphs={**made.graphs, **fine})

        return change

    known = given(facts())
    same = models.small_bundle(gain=0.5, change=with_int8(0.5001))
    assert Model(same).flavour == "float32"
    assert Model(same, int8=True).flavour == "int8"
    assert Model(models.small_bundle(gain=0.5), int8=True).flavour == "float32"
    other = models.small_bundle(gain=0.5, change=with_int8(-9.0))
    model = Model(other, int8=True)
    assert model.flavour == "float32"
    np.testing.assert_array_equal(
        AttentionScorer(model).score(known).cost_s,
        AttentionScorer(Model(other)).score(known).cost_s,
    )
