"""What features are made of, as a service's windows come in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from tests.support.windows import CellSums, service_window

from attnroute.features.facts import Facts
from attnroute.features.table import kinds_of
from attnroute.scoring.base import Scored, ScorerInfo, ScoringInput
from attnroute.scoring.service import Layout, ServiceScores

A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"
GET, BIG, PUT = "/cart/Get;bytes=..1024", "/cart/Get;bytes=1024..", "/cart/Put;bytes=unknown"
IDS = {A: 1, B: 2, C: 3}

Cells = Mapping[tuple[str, str], CellSums]


class Watching:
    """A scorer that says what the table says and keeps what it was given."""

    def __init__(self, schema: str = "v1") -> None:
        self.info = ScorerInfo("watching", "1.0.0", schema, 0.001)
        self.given: list[ScoringInput] = []

    def score(self, given: ScoringInput) -> Scored:
        self.given.append(given)
        same = given.table_cost_s
        return Scored(same, np.full(same.shape, 1 / same.shape[1]), same, np.ones(same.shape))

    @property
    def facts(self) -> Facts:
        found = self.given[-1].facts
        assert found is not None
        return found


class Service:
    """ServiceScores, a second at a time."""

    def __init__(self, scorer: Watching | None = None, own_zone: str = "") -> None:
        self.scorer = scorer or Watching()
        self.scores = ServiceScores(sidecars=4, now_s=0.0, scorers=[self.scorer], own_zone=own_zone)
        self.now_s = 0.0

    def step(
        self,
        cells: Cells,
        attributes: Mapping[str, Mapping[str, str]] | None = None,
        after_s: float = 1.0,
        **others: object,
    ) -> Facts:
        window = service_window(cells, **others)  # type: ignore[arg-type]
        return self.take(window, attributes, after_s)

    def take(self, window, attributes=None, after_s=1.0) -> Facts:  # type: ignore[no-untyped-def]
        self.now_s += after_s
        ids = tuple(IDS[name] for name in window.endpoints)
        layout = Layout(1, 1, window.classes, window.endpoints, ids)
        known = tuple((attributes or {}).get(name, {}) for name in window.endpoints)
        usable = np.ones(len(ids), dtype=bool)
        self.scores.observe(layout, window, usable, self.now_s, known)
        self.scores.scores(self.now_s)
        return self.scorer.facts


BOTH: Cells = {(GET, A): (20, 0.2), (BIG, A): (4, 0.4), (PUT, B): (20, 0.6)}


def test_they_are_made_only_for_a_scorer_with_a_feature_schema() -> None:
    service = Service(Watching(schema=""))
    with pytest.raises(AssertionError):
        service.step(BOTH)
    assert service.scorer.given[-1].facts is None


def test_they_are_the_table_in_the_order_of_the_layout() -> None:
    service = Service()
    service.step({(PUT, B): (5, 0.1), (GET, B): (5, 0.1)})
    facts = service.step(BOTH)
    given = service.scorer.given[-1]
    assert facts.classes == (GET, BIG, PUT)
    assert facts.endpoints == (A, B)
    np.testing.assert_array_equal(facts.table.cost_s, given.table_cost_s)
    np.testing.assert_array_equal(facts.sums.den, given.calls)
    assert facts.table.kind_ratio.shape == (2, 2)  # Get and Put, though the ledger met Put first
    # The prior that leans on the kind's ratio is what a cell without calls costs.
    prior = (
        facts.table.class_mean_s[:, None]
        * facts.table.endpoint_factor
        * facts.table.kind_ratio[kinds_of(facts.classes)]
    )
    assert facts.sums.den[2, 0] == 0
    assert prior[2, 0] == pytest.approx(given.table_cost_s[2, 0])


def test_the_fast_sums_forget_sooner_and_the_recent_ones_at_once() -> None:
    service = Service()
    service.step({(GET, A): (20, 0.2), (GET, B): (20, 0.2)})
    first = service.step({(GET, A): (30, 0.6), (GET, B): (0, 0.0)})
    # 20 calls of a steady stream of 10 s are 12 of one of 6 s, a second ago.
    assert first.fast.den[0, 0] == pytest.approx(12 * math.exp(-1 / 6) + 30)
    recent = 3 * math.exp(-1 / 1.5)
    assert first.recent.den[0].tolist() == pytest.approx([recent + 30, recent])
    assert first.recent.calls.tolist() == pytest.approx([recent + 30, recent])
    for _ in range(3):
        last = service.step({(GET, A): (0, 0.0), (GET, B): (10, 0.1)})
    assert last.recent.den[0, 0] / last.fast.den[0, 0] < 0.25
    assert last.fast.den[0, 0] / last.sums.den[0, 0] < 0.8
    assert last.fast.busy_s.shape == (2,)


def test_a_second_look_in_a_second_changes_nothing() -> None:
    service = Service()
    service.step(BOTH)
    facts = service.step(BOTH)
    service.scores.scores(service.now_s)
    again = service.scorer.facts
    np.testing.assert_allclose(again.fast.den, facts.fast.den)
    np.testing.assert_allclose(again.recent.den, facts.recent.den)


def test_names_that_come_and_go_keep_what_is_theirs() -> None:
    service = Service()
    service.step(BOTH)
    before = service.step(BOTH)
    after = service.step({(PUT, C): (1, 0.1), (PUT, B): (20, 0.6)})
    assert after.endpoints == (C, B)
    assert after.fast.den[0, 1] == pytest.approx(
        before.fast.den[2, 1] * math.exp(-1 / 6) + 20, rel=1e-6
    )
    assert after.fast.den[0, 0] == pytest.approx(1.0)


def test_a_restart_drops_what_was_measured() -> None:
    service = Service()
    service.step(BOTH, started_s={A: 100.0, B: 100.0})
    service.step(BOTH, started_s={A: 100.0, B: 100.0})
    facts = service.step({(GET, A): (2, 0.02), (PUT, B): (20, 0.6)}, started_s={A: 200.0, B: 100.0})
    assert facts.fast.den[0, 0] == pytest.approx(2.0)
    assert facts.age_s.tolist() == [0.0, np.inf]


def test_ages_zones_and_labels() -> None:
    service = Service(own_zone="eu-1a")
    labels = {A: {"zone": "eu-1a", "rack": "7"}, B: {"zone": "eu-1b"}}
    facts = service.step(BOTH, labels)
    assert np.isinf(facts.age_s).all()
    assert facts.zone_match.tolist() == [1.0, 0.0]
    assert facts.labels[0] == {"zone": "eu-1a", "rack": "7"}
    service.step({**BOTH, (PUT, C): (1, 0.1)}, labels)
    facts = service.step({**BOTH, (PUT, C): (1, 0.1)}, labels, after_s=5.0)
    assert facts.endpoints == (A, B, C)
    assert facts.age_s.tolist() == [np.inf, np.inf, 5.0]
    assert np.isnan(facts.zone_match[2])


def test_load_and_errors_of_the_last_windows() -> None:
    service = Service()
    window = service_window({(GET, A): (10, 0.1), (GET, B): (10, 0.1)})
    reported = replace(
        window,
        reports=np.array([10.0, 0.0]),
        utilization=np.array([5.0, 0.0]),
        utilization_reports=np.array([10.0, 0.0]),
        reported_inflight=np.array([40.0, 0.0]),
        inflight_estimate=np.array([0.0, 20.0]),
        errors=np.array([0.0, 5.0]),
    )
    facts = service.take(reported)
    assert facts.utilization[0] == pytest.approx(0.5)
    assert np.isnan(facts.utilization[1])
    assert facts.inflight.tolist() == pytest.approx([4.0, 2.0])
    assert facts.error_share.tolist() == pytest.approx([0.0, 0.5])
    # The last window counts most, and what is not seen stays known a while.
    facts = service.take(replace(reported, utilization=np.array([9.0, 0.0])))
    left = math.exp(-1 / 2)
    assert facts.utilization[0] == pytest.approx((0.5 * left + 0.9) / (left + 1))
    silent = replace(
        reported,
        reports=np.zeros(2),
        utilization=np.zeros(2),
        utilization_reports=np.zeros(2),
        ended=np.zeros(2),
    )
    for _ in range(30):
        facts = service.take(silent)
    assert np.isnan(facts.utilization).all()
