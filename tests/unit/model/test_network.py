"""What must hold of the network whatever its weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.facts import facts

from attnroute.features.extract import extract
from attnroute.features.schema import PAIR_FEATURES
from attnroute.model.export import random_inputs
from attnroute.model.network import Routed, Router, RouterConfig

Inputs = dict[str, torch.Tensor]


def given(classes: int = 4, endpoints: int = 6, masked: str = "some") -> Inputs:
    inputs = random_inputs(classes, endpoints, seed=5, masked=masked)
    return {name: torch.from_numpy(value) for name, value in inputs.items()}


def trained(config: RouterConfig | None = None) -> Router:
    """A router with weights of some size everywhere."""
    router = Router(config, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for value in router.parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=generator))
    return router


def run(router: Router, inputs: Inputs) -> Routed:
    with torch.no_grad():
        routed: Routed = router(**inputs)
    return routed


def test_an_untrained_router_is_the_table() -> None:
    matrices = extract(facts())
    inputs = {name: torch.from_numpy(value) for name, value in matrices.tensors().items()}
    routed = run(Router(), inputs)
    assert routed.cost_s.numpy() == pytest.approx(matrices.table_cost_s)
    assert routed.spread.numpy() == pytest.approx(np.exp(-0.5))
    time_s = matrices.rtt_s + matrices.table_cost_s
    chosen = time_s**-1.5 / (time_s**-1.5).sum(axis=1, keepdims=True)
    assert routed.probability.numpy() == pytest.approx(0.97 * chosen + 0.03 / 5, rel=1e-4)


def test_endpoints_have_no_order() -> None:
    """Turning the endpoints around turns the answer around, and so with classes."""
    router, inputs = trained(), given()
    order, rows = torch.tensor([3, 1, 5, 0, 2, 4]), torch.tensor([2, 0, 3, 1])
    turned = {
        "endpoint": inputs["endpoint"][order],
        "request_class": inputs["request_class"][rows],
        "pair": inputs["pair"][rows][:, order],
        "table_cost_s": inputs["table_cost_s"][rows][:, order],
        "rtt_s": inputs["rtt_s"][order],
        "mask": inputs["mask"][order],
    }
    straight, other = run(router, inputs), run(router, turned)
    for name in ("cost_s", "spread", "probability"):
        expected = getattr(straight, name)[rows][:, order].numpy()
        assert getattr(other, name).numpy() == pytest.approx(expected, rel=1e-4), name


def test_who_is_masked_gets_nothing_and_changes_no_cost() -> None:
    router, inputs = trained(), given(masked="none")
    masked = {**inputs, "mask": torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])}
    before, after = run(router, inputs), run(router, masked)
    assert after.probability[:, [1, 4]].max() == 0
    assert after.probability.sum(dim=1).numpy() == pytest.approx(1.0, rel=1e-5)
    assert after.probability[:, [0, 2, 3, 5]].min() >= 0.03 / 4 - 1e-6
    assert torch.equal(before.cost_s, after.cost_s)


@pytest.mark.parametrize("masked", ["but_one", "all"])
def test_probabilities_sum_to_one_at_the_edges(masked: str) -> None:
    probability = run(trained(), given(masked=masked)).probability
    assert probability.sum(dim=1).numpy() == pytest.approx(1.0, rel=1e-5)
    if masked == "but_one":
        assert probability[:, 0].numpy() == pytest.approx(1.0, rel=1e-5)


def test_the_correction_is_bounded_and_off_for_other() -> None:
    router, inputs = trained(), given()
    with torch.no_grad():
        router.score.decide.bias[0] = 100.0
    inputs["pair"][:, :, -1] = torch.tensor([1.0, 1.0, 0.0, 1.0])[:, None]
    routed = run(router, inputs)
    ratio = (routed.cost_s / inputs["table_cost_s"]).log()
    assert ratio.max() <= 2.5 + 1e-5
    assert ratio[0].numpy() == pytest.approx(2.5, abs=0.01)
    assert ratio[2].numpy() == pytest.approx(0.0, abs=1e-6)


def test_spread_stays_in_its_range() -> None:
    router = trained()
    for bias, expected in ((100.0, np.exp(1)), (-100.0, np.exp(-3))):
        with torch.no_grad():
            router.score.decide.bias[1] = bias
        assert run(router, given()).spread.numpy() == pytest.approx(expected)


def test_temperature_flattens() -> None:
    router, inputs = trained(), given(masked="none")
    sharp = run(router, inputs).probability.max()
    with torch.no_grad():
        router.score.temperature.fill_(50.0)
    assert run(router, inputs).probability.max() < sharp


def test_probabilities_leave_the_costs_alone() -> None:
    """The attention loss must not bend what the network thinks a call takes."""
    router = trained()
    routed: Routed = router(**given())
    torch.autograd.backward((routed.probability * torch.linspace(0, 1, 6)).sum())
    assert router.score.decide.weight.grad is None or not router.score.decide.weight.grad.any()
    assert router.score.route.grad is not None
    assert router.score.route.grad.abs().sum() > 0


@pytest.mark.parametrize("heads", [1, 2, 8, 16])
def test_any_number_of_heads_works(heads: int) -> None:
    routed = run(trained(RouterConfig(heads=heads)), given())
    assert routed.cost_s.shape == (4, 6)
    assert len(PAIR_FEATURES) > 0


def test_the_seed_decides_the_start() -> None:
    one, same, other = Router(seed=3), Router(seed=3), Router(seed=4)
    assert torch.equal(one.encode_endpoints.first.weight, same.encode_endpoints.first.weight)
    assert not torch.equal(one.encode_endpoints.first.weight, other.encode_endpoints.first.weight)
