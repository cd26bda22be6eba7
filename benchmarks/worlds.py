"""Scenarios of `configs/scenarios/`, shortened: the same worlds in a third of the time.

Nothing of a world changes but when it begins to count, when things happen and when it ends. Tables
forget in 10 s, so what is learned after 30 s is what is learned after 120 s, but for concurrency,
which goes by 120 windows and stays on the cautious side before.
"""

from __future__ import annotations

import dataclasses
import json

from attnroute.sim.scenario import LoadedScenario

__all__ = ["WARMUP_S", "shortened"]

WARMUP_S = 30.0
STEADY_S = 60.0
"""Measured of a world, at least."""
AFTER_EVENT_S = 40.0
"""Measured after the last thing that happens."""


def shortened(scenario: LoadedScenario) -> LoadedScenario:
    """The scenario with a warm-up of `WARMUP_S` at most, events as long after it as they were,
    and measured until `AFTER_EVENT_S` after the last one, at least `STEADY_S`, never longer than
    before. Seconds of the events in the result are those of the shortened run."""
    described = json.loads(scenario.compiled)
    warmup_ms = described["warmup_ms"]
    earlier_ms = max(0, warmup_ms - round(WARMUP_S * 1e3))
    for event in described["events"]:
        if event["at_ms"] >= earlier_ms:
            event["at_ms"] -= earlier_ms
    described["warmup_ms"] = warmup_ms - earlier_ms
    last_ms = max((event["at_ms"] for event in described["events"]), default=0)
    needed_ms = max(
        STEADY_S * 1e3, last_ms + AFTER_EVENT_S * 1e3 - described["warmup_ms"] if last_ms else 0
    )
    described["duration_ms"] = round(min(described["duration_ms"], needed_ms))
    return dataclasses.replace(
        scenario,
        compiled=json.dumps(described, separators=(",", ":"), allow_nan=False).encode(),
        events=tuple(
            (at_s - earlier_ms / 1e3 if at_s >= earlier_ms / 1e3 else at_s, what)
            for at_s, what in scenario.events
        ),
    )
