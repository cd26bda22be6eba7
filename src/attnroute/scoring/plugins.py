"""Scorers of others: an installed distribution names one under the entry point group
`attnroute.scorers`, and a service's policy says which it wants.

    [project.entry-points."attnroute.scorers"]
    by_hour = "my_package.by_hour:make"

The entry point is a function of the service's name that returns a scorer, called once a service.
What it declares is checked before anything of it counts: a scorer that was made for other features
is wrong without looking wrong. docs/scorers.md has an example that runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata

from attnroute.errors import AttnrouteError
from attnroute.features.schema import schema_hash
from attnroute.scoring.base import Scorer, ScorerInfo

__all__ = ["GROUP", "LATENCY_MAX_S", "PluginError", "installed", "make_scorer"]

GROUP = "attnroute.scorers"

LATENCY_MAX_S = 0.5
"""A scoring run is once a second, and there are other scorers."""

_SEMANTIC = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")


class PluginError(AttnrouteError):
    """A scorer that is not there, or does not fit."""


def installed(search: Sequence[str] | None = None) -> dict[str, metadata.EntryPoint]:
    """Every scorer that a distribution offers, by name. search: where to look; default: the path of
    this interpreter."""
    if search is None:
        found: Iterable[metadata.EntryPoint] = metadata.entry_points(group=GROUP)
    else:
        found = [
            entry
            for distribution in metadata.distributions(path=list(search))
            for entry in distribution.entry_points
            if entry.group == GROUP
        ]
    return {entry.name: entry for entry in found}


def make_scorer(
    name: str, service: str, offered: dict[str, metadata.EntryPoint] | None = None
) -> Scorer:
    """The scorer of that name for a service. offered: what is installed, if that is known.

    Raises PluginError: it is not installed, breaks, or declares what does not fit.
    """
    offered = installed() if offered is None else offered
    entry = offered.get(name)
    if entry is None:
        known = ", ".join(f"`{one}`" for one in sorted(offered)) or "none"
        raise PluginError(
            f"scorer `{name}` is not installed (entry point group `{GROUP}`; there are: {known}); "
            "install the distribution that has it"
        )
    try:
        make: Callable[[str], Scorer] = entry.load()
        scorer = make(service)
        info = scorer.info
    except Exception as error:  # foreign code
        raise PluginError(
            f"scorer `{name}` (`{entry.value}`) cannot be made: {type(error).__name__}: {error}; "
            "mend its distribution"
        ) from error
    problem = _problem(name, scorer, info)
    if problem:
        raise PluginError(f"scorer `{name}` (`{entry.value}`) {problem}")
    return scorer


def _problem(name: str, scorer: object, info: object) -> str:
    if not isinstance(info, ScorerInfo):
        return f"has `{type(info).__name__}` for `info`, expected `ScorerInfo`"
    if not callable(getattr(scorer, "score", None)):
        return "has no method `score`"
    if info.name != name:
        return f"calls itself `{info.name}`; name entry point and `info` alike"
    if not _SEMANTIC.fullmatch(info.version):
        return f"has version `{info.version}`, expected a semantic one such as `1.0.0`"
    if info.feature_schema not in ("", schema_hash()):
        return (
            f"was made for the feature schema `{info.feature_schema}`, this build has "
            f"`{schema_hash()}`; use the version of it that was made for this attnroute"
        )
    for key in ("expected_latency_s", "cost_s"):
        value = getattr(info, key)
        if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            return f"has `{key}` {value!r}, expected seconds, 0 or more"
    if info.expected_latency_s > LATENCY_MAX_S:
        return (
            f"expects a run to take {info.expected_latency_s:g} s, at most {LATENCY_MAX_S:g} s are "
            "allowed"
        )
    return ""
