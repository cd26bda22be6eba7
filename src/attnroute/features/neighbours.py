"""What similar endpoints and similar methods say of a pair that has been seen rarely.

Where calls are few, most of what can be known of a (class, endpoint) was measured elsewhere: on
endpoints that do well and badly with the same methods, and of methods that do well and badly on the
same endpoints. Both are weighted by how alike the patterns are (the cosine of ln r, weighted by how
sure both are, cut off at 0 and cubed, so that chance agrees little), and summed as the table sums.

No weights are trained here: it is arithmetic over the table, so it works for methods and fleets
that no training has seen. How far to trust it is what the network learns. Cost: M E A for M kinds,
E endpoints and A <= 512 of them that the others are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attnroute.features.facts import Facts
from attnroute.features.table import OTHER, Array, Index, kinds_of

__all__ = ["Neighbours", "neighbours"]

_PRIOR_CALLS = 2.0
_SURE_CALLS = 3.0
_SHARPNESS = 3
_ANCHORS_MAX = 512
"""Endpoints that the others are compared with: the most called ones."""


@dataclass(frozen=True)
class Neighbours:
    """[C, E] each: ln of what the neighbours say over the class's and endpoint's time, cm f; and
    the decayed calls behind it. 0 where there are none."""

    endpoint_ratio: Array
    endpoint_calls: Array
    kind_ratio: Array
    kind_calls: Array


def neighbours(facts: Facts) -> Neighbours:
    """By similar endpoints, and by similar methods, of every class and endpoint."""
    kinds = kinds_of(facts.classes)
    size = (int(kinds.max(initial=-1)) + 1, len(facts.endpoints))
    table = facts.table
    own = np.array([name != OTHER for name in facts.classes], dtype=bool)
    expected_s = facts.sums.den * table.class_mean_s[:, None] * table.endpoint_factor
    measured = _by_kind(np.maximum(facts.sums.num_s, 0.0) * own[:, None], kinds, size)
    expected = _by_kind(expected_s * own[:, None], kinds, size)
    calls = _by_kind(facts.sums.den * own[:, None], kinds, size)
    # Of a kind's usual call, so that seconds of long and of short ones weigh as calls do.
    kind_calls = calls.sum(axis=1, keepdims=True)
    usual_s = np.where(kind_calls > 0, expected.sum(axis=1, keepdims=True), 1.0)
    usual_s = usual_s / np.where(kind_calls > 0, kind_calls, 1.0)
    measured, expected = measured / usual_s, expected / usual_s
    pattern = np.log((measured + _PRIOR_CALLS) / (expected + _PRIOR_CALLS))
    # How an endpoint does as a whole, and how a kind does, is in f and cm already.
    sure = calls / (calls + _SURE_CALLS)

    anchors = _anchors(facts.sums.calls)
    alike = _alike(pattern, sure, pattern[:, anchors], sure[:, anchors])
    alike[anchors, np.arange(len(anchors))] = 0.0
    by_endpoint = [part[:, anchors] @ alike.T for part in (measured, expected, calls)]
    kind_alike = _alike(pattern.T, sure.T, pattern.T, sure.T)
    np.fill_diagonal(kind_alike, 0.0)
    by_kind = [kind_alike @ part for part in (measured, expected, calls)]
    return Neighbours(*_said(by_endpoint, kinds), *_said(by_kind, kinds))


def _by_kind(values: Array, kinds: Index, size: tuple[int, int]) -> Array:
    found = np.zeros(size)
    np.add.at(found, kinds, values)
    return found


def _anchors(calls: Array) -> Index:
    if len(calls) <= _ANCHORS_MAX:
        return np.arange(len(calls))
    return np.sort(np.argsort(-calls, kind="stable")[:_ANCHORS_MAX])


def _alike(pattern: Array, sure: Array, other: Array, other_sure: Array) -> Array:
    """[n, m]: how alike the columns of two sets of patterns are, 0 to 1. [f, n] and [f, m]."""
    product = (sure * pattern).T @ (other_sure * other)
    squares = (sure * pattern**2).T @ other_sure
    other_squares = sure.T @ (other_sure * other**2)
    # A quarter of a call's worth of nothing: two patterns that are flat are not alike.
    cosine = product / (np.sqrt(squares * other_squares) + 0.05)
    return np.asarray(np.maximum(cosine, 0.0) ** _SHARPNESS)


def _said(sums: list[Array], kinds: Index) -> tuple[Array, Array]:
    """ln of the ratio and the calls, by class. sums: measured, expected and calls by kind."""
    measured, expected, calls = sums
    ratio = np.log((measured + _PRIOR_CALLS) / (expected + _PRIOR_CALLS))
    return np.asarray(ratio[kinds]), np.asarray(calls[kinds])
