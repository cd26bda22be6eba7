"""The balancers of the policy: what `docs/balancers.md` describes, as the operator writes it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field

from attnroute.policy.fields import Parsed, Strict, duration
from attnroute.policy.learning import GateKeys, TableKeys

__all__ = [
    "BALANCER_NAMES",
    "Balancer",
    "Learned",
    "LeastRequest",
    "SlowStart",
    "balancer_json",
]

_MS = timedelta(milliseconds=1)
_HOUR = timedelta(hours=1)
_TABLE_SIZE_MAX = 5_000_011
_BOUNDED_LOAD = "expected a number from 1 to 1000000, or 0 for unbounded"
_HEADER_PATTERN = r"^[a-z0-9!#$%&'*+.^_`|~-]+$"
_METRIC_PATTERN = r"^(named_metrics\..+|(cpu|mem|application)_utilization)$"


def _choice_count(value: object) -> int | str:
    if value == "all":
        return "all"
    if isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= 100:
        return value
    raise ValueError("expected a whole number from 2 to 100, or `all`")


def _share(value: object) -> float:
    number = value
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?%", value):
        number = float(value[:-1]) / 100
    if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= 1:
        return float(number)
    raise ValueError("expected a share from `0%` to `100%`, or from 0 to 1")


def _table_size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= _TABLE_SIZE_MAX:
        divisors = range(2, int(value**0.5) + 1)
        if all(value % divisor for divisor in divisors):
            return value
    raise ValueError(f"expected a prime up to {_TABLE_SIZE_MAX}, such as 65537")


def _bounded_load(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(_BOUNDED_LOAD)
    if value == 0 or 1 <= value <= 1_000_000:
        return float(value)
    raise ValueError(_BOUNDED_LOAD)


def _matching(pattern: str, expected: str) -> Parsed:
    def parse(value: object) -> str:
        if isinstance(value, str) and re.fullmatch(pattern, value):
            return value
        raise ValueError(f"expected {expected}")

    return Parsed(parse, {"type": "string", "pattern": pattern})


ChoiceCount = Annotated[
    int | Literal["all"],
    Parsed(
        _choice_count,
        {"anyOf": [{"type": "integer", "minimum": 2, "maximum": 100}, {"const": "all"}]},
    ),
]
Share = Annotated[
    float,
    Parsed(
        _share,
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": 1},
                {"type": "string", "pattern": r"^0*(100(\.0+)?|[0-9]{1,2}(\.[0-9]+)?)%$"},
            ]
        },
    ),
]


def share_from(least: float) -> Parsed:
    """A share that must not be smaller than `least`."""

    def parse(value: object) -> float:
        share = _share(value)
        if share < least:
            raise ValueError(f"expected a share from `{least:.1%}` to `100%`")
        return share

    number = {"type": "number", "minimum": least, "maximum": 1}
    percent = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?%$"}
    return Parsed(parse, {"anyOf": [number, percent]})


TableSize = Annotated[
    int, Parsed(_table_size, {"type": "integer", "minimum": 2, "maximum": _TABLE_SIZE_MAX})
]
BoundedLoad = Annotated[
    float, Parsed(_bounded_load, {"type": "number", "minimum": 0, "maximum": 1_000_000})
]
HeaderName = Annotated[str, _matching(_HEADER_PATTERN, "the name of a header in lower case")]
MetricName = Annotated[
    str,
    _matching(
        _METRIC_PATTERN,
        "`named_metrics.<name>`, `cpu_utilization`, `mem_utilization` or `application_utilization`",
    ),
]
Period = Annotated[timedelta, duration(_MS, 24 * _HOUR)]
OptionalPeriod = Annotated[timedelta, duration(timedelta(0), 24 * _HOUR)]


Factor = Annotated[float, Field(ge=0, le=1_000)]


class RoundRobin(Strict):
    """In turn, in proportion to static weights."""

    type: Literal["round_robin"] = Field(description="The balancer.")


class LeastRequest(Strict):
    """Least (in flight + 1) / weight among a few drawn endpoints, or among all."""

    type: Literal["least_request"] = Field(description="The balancer.")
    choice_count: ChoiceCount = Field(
        default=2, description="Endpoints that are compared: 2 to 100 draws, or `all`."
    )
    with_replacement: bool = Field(
        default=False, description="Whether one endpoint can be drawn twice."
    )


class Random(Strict):
    """At random, in proportion to static weights."""

    type: Literal["random"] = Field(description="The balancer.")


class WeightedRoundRobin(Strict):
    """In turn, in proportion to weights that follow from load reports (gRFC A58)."""

    type: Literal["weighted_round_robin"] = Field(description="The balancer.")
    blackout: OptionalPeriod = Field(
        default=timedelta(seconds=10),
        description="How long an endpoint must have been reporting before its reports count.",
    )
    expiration: Period = Field(
        default=timedelta(minutes=3), description="Age at which the last report counts no more."
    )
    update: Period = Field(default=timedelta(seconds=1), description="Time between two schedules.")
    error_utilization_penalty: float = Field(
        default=1.0, ge=0, le=1_000_000, description="Factor of the error share in the utilization."
    )
    metric_names: tuple[MetricName, ...] = Field(
        default=(),
        description="Metrics whose largest value is the utilization; without one of them in a "
        "report `application_utilization` counts, else `cpu_utilization`.",
    )


class PeakEwma(Strict):
    """The lesser latency times load of two drawn endpoints."""

    type: Literal["peak_ewma"] = Field(description="The balancer.")
    decay: Period = Field(
        default=timedelta(seconds=10),
        description="Time in which what is known of a latency falls to 1/e.",
    )
    default_rtt: OptionalPeriod = Field(
        default=timedelta(milliseconds=30),
        description="Latency assumed of an endpoint that never answered; 0: try it when idle.",
    )


class C3(Strict):
    """The least expected queue, cubed, over all endpoints."""

    type: Literal["c3"] = Field(description="The balancer.")
    decay: Period = Field(
        default=timedelta(seconds=10),
        description="Time without an answer in which what is known falls to 1/e.",
    )


class Prequal(Strict):
    """The fastest of the less loaded endpoints in a pool of probes."""

    type: Literal["prequal"] = Field(description="The balancer.")
    hot_quantile: Share = Field(
        default=0.0,
        description="Quantile of recent calls in flight from which on an endpoint is hot; 0: all "
        "are, so that the least loaded is picked; 1: none is; the paper has 0.84.",
    )
    pool_size: int = Field(default=16, ge=2, le=16, description="Probes at most in the pool.")
    probes_per_pick: float = Field(
        default=3.0, ge=0, le=16, description="Probes for each pick; fractions add up."
    )
    removals_per_pick: float = Field(
        default=1.0, ge=0, le=16, description="Probes taken out of the pool after each pick."
    )
    age_limit: Period = Field(
        default=timedelta(seconds=1), description="Age at which a probe counts no more."
    )
    reuse_slack: float = Field(
        default=1.0,
        ge=0,
        le=1_000_000,
        description="By how much more than is needed a probe may be used again.",
    )
    probe_source: Literal["reports", "endpoints"] = Field(
        default="reports",
        description="Who answers probes: the last load reports stand in, or the endpoints.",
    )


class LatencyObservation(Strict):
    """The least latency that recent calls predict for the calls in flight now."""

    type: Literal["latency_observation"] = Field(description="The balancer.")
    exploration: Share = Field(
        default=0.1,
        description="Probability with which each endpoint that is not known well enough is tried.",
    )


class RingHash(Strict):
    """By the hash of a header on a ring, with bounded load."""

    type: Literal["ring_hash"] = Field(description="The balancer.")
    header: HeaderName | None = Field(
        default=None,
        description="Request header whose value is the key; a call without it goes anywhere.",
    )
    points_per_endpoint: int = Field(
        default=100, ge=1, le=1_024, description="Points of an endpoint of mean weight."
    )
    bounded_load: BoundedLoad = Field(
        default=1.25,
        description="Calls in flight at most relative to a fair share; 0: unbounded.",
    )


class Maglev(Strict):
    """By the hash of a header in a table, with bounded load."""

    type: Literal["maglev"] = Field(description="The balancer.")
    header: HeaderName | None = Field(
        default=None,
        description="Request header whose value is the key; a call without it goes anywhere.",
    )
    table_size: TableSize = Field(
        default=65_537, description="Places of the table: a prime, far more than endpoints."
    )
    bounded_load: BoundedLoad = Field(
        default=1.25,
        description="Calls in flight at most relative to a fair share; 0: unbounded.",
    )


Classic = (
    RoundRobin
    | LeastRequest
    | Random
    | WeightedRoundRobin
    | PeakEwma
    | C3
    | Prequal
    | LatencyObservation
    | RingHash
    | Maglev
)


class Learned(Strict):
    """The least expected cost, by what was learned of each class of calls on each endpoint. What
    the keys mean stands in docs/model.md; a factor of 0 and `false` switch a term off."""

    type: Literal["learned"] = Field(description="The balancer.")
    fallback: Annotated[Classic, Field(discriminator="type")] = Field(
        default=LeastRequest(type="least_request", choice_count="all"),
        description="Who picks when no scores were published for `fallback_after`, and for "
        "`holdout`.",
    )
    full_scan_up_to: int = Field(
        default=100, ge=0, le=100_000, description="Usable endpoints up to which all are compared."
    )
    candidates: int = Field(
        default=16,
        ge=1,
        le=64,
        description="Endpoints that are drawn by the routing probabilities and compared where "
        "there are more.",
    )
    selection: Literal["live", "greedy", "sampling"] = Field(
        default="live",
        description="Who gets a call while scores are fresh: `live`, the least cost by scores and "
        "by how busy endpoints are now; `greedy`, the largest weight of its class; `sampling`, one "
        "drawn by these weights. The last two do not look at queues: for study, or for services "
        "that are never busy.",
    )
    overload_split: bool = Field(
        default=False,
        description="Whether a choice with more than three times the calls that it works on gives "
        "way to one that is drawn.",
    )
    holdout: Share = Field(
        default=0.0, description="Share of the picks that the fallback makes, for comparison."
    )
    endpoint_ratio: bool = Field(
        default=True,
        description="Whether measured against expected latency of an endpoint scales its cost.",
    )
    kind_ratio: bool = Field(default=True, description="Whether it does so by kind of call.")
    reported_load: bool = Field(
        default=True,
        description="Whether load reports say how many calls of others an endpoint has.",
    )
    peer_share: Factor = Field(
        default=0.25,
        description="Calls that each other sidecar is taken to have begun for each own one since "
        "the report.",
    )
    utilization_factor: Factor = Field(default=0.2, description="Weight of reported utilization.")
    queue_factor: Factor = Field(
        default=0.3, description="Weight of the queue, by the endpoint's mean service time."
    )
    class_queue_factor: Factor = Field(
        default=1.0, description="Weight of the queue, by the service time of the class."
    )
    error_penalty: OptionalPeriod = Field(
        default=timedelta(seconds=1), description="What an endpoint that always fails costs."
    )
    error_threshold: Share = Field(
        default=0.02, description="Share of errors up to which they cost nothing."
    )
    report_fade: Period = Field(
        default=timedelta(milliseconds=100),
        description="Time in which a load report gives way to the mean of those before it.",
    )
    ratio_decay: Period = Field(
        default=timedelta(seconds=4),
        description="Time in which measured against expected latency is forgotten.",
    )
    error_decay: Period = Field(
        default=timedelta(seconds=2), description="Time in which the share of errors follows."
    )
    error_fade: Period = Field(
        default=timedelta(seconds=20),
        description="Time without an answer in which the share of errors is forgotten.",
    )
    others_decay: Period = Field(
        default=timedelta(seconds=3),
        description="Time in which the mean of others' calls follows.",
    )
    scores_stale_after: Period = Field(
        default=timedelta(seconds=30),
        description="Age of the scores from which on the model's are left for the table's.",
    )
    fallback_after: Period = Field(
        default=timedelta(minutes=3),
        description="Age of the scores from which on the fallback picks; at least "
        "`scores_stale_after`.",
    )
    table: TableKeys = Field(
        default=TableKeys(),
        description="The table of service times; the trainer's file has the same keys.",
    )
    gate: GateKeys = Field(
        default=GateKeys(), description="How far a model is trusted beside the table."
    )


Balancer = Annotated[Classic | Learned, Field(discriminator="type")]

BALANCER_NAMES = (
    "round_robin",
    "least_request",
    "random",
    "weighted_round_robin",
    "peak_ewma",
    "c3",
    "prequal",
    "latency_observation",
    "ring_hash",
    "maglev",
    "learned",
)
"""Every value of `type`, in the order of the data plane."""


class SlowStart(Strict):
    """How an endpoint that is new gets its first calls."""

    window: OptionalPeriod = Field(
        default=timedelta(0),
        description="Time from its first possible pick to its full share; 0 switches it off.",
    )
    aggression: float = Field(
        default=1.0,
        gt=0,
        le=1_000,
        description="1: the share rises evenly; more: fast at first, then slowly.",
    )


def balancer_json(balancer: Strict) -> dict[str, Any]:
    """The balancer as the data plane takes it: durations as `<key>_ms`, in whole milliseconds."""
    config: dict[str, Any] = {}
    for name, value in balancer:
        if isinstance(value, TableKeys | GateKeys):
            continue  # stays on the control side
        if isinstance(value, Strict):
            config[name] = balancer_json(value)
        elif isinstance(value, timedelta):
            config[f"{name}_ms"] = value // _MS
        elif name == "choice_count":
            config[name] = "all" if value == "all" else {"draws": value}
        else:
            config[name] = list(value) if isinstance(value, tuple) else value
    return config
