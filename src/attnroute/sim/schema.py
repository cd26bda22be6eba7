"""The scenario file: every key, its type, its limits, its default.

One mapping holds alternatives as keys of which exactly one may stand (`fraction` or `rps`), as the
policy does for sources of endpoints. Rules between fields stand in `scenario`, which also compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from attnroute.policy import scalars
from attnroute.policy.health import OutlierDetection

__all__ = [
    "AccessLog",
    "Add",
    "Autoscale",
    "Cold",
    "Event",
    "Kind",
    "Lasting",
    "Load",
    "ModelFault",
    "ParetoSizes",
    "RequestClasses",
    "Restart",
    "Scenario",
    "ServiceTime",
    "TrainerDown",
    "json_schema",
]

_DURATION_SCHEMA = {"type": "string", "pattern": scalars.DURATION_PATTERN}
Duration = Annotated[
    timedelta, BeforeValidator(scalars.parse_duration), WithJsonSchema(_DURATION_SCHEMA)
]
Positive = Annotated[float, Field(gt=0, le=1e9)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10_000)]
Text = Annotated[str, BeforeValidator(scalars.parse_text), WithJsonSchema({"type": "string"})]


class _Part(BaseModel):
    """What all parts share: nothing unknown, nothing converted, nothing changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_free_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if not key.startswith("x-")}
        return data


class Sidecars(_Part):
    """Who calls. The short form is their number alone."""

    count: Count = Field(description="How many; each sees only its own calls.")
    zones: tuple[Text, ...] = Field(default=(), description="Zones, in turn.")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"count": data} if isinstance(data, int) else data


class EndpointGroup(_Part):
    """Endpoints of one kind."""

    name: Text = Field(default="all", description="Unique; what events select by.")
    count: Count = Field(description="How many.")
    workers: Count = Field(default=1, description="Calls worked on at a time.")
    speed: Positive = Field(default=1.0, description="Relative to `service_time`.")
    zones: tuple[Text, ...] = Field(default=(), description="Zones, in turn.")
    labels: dict[Text, Text] = Field(default_factory=dict, description="As discovery tells them.")
    static_weight: float = Field(
        default=1.0, ge=0, le=1_000_000, description="As discovery tells it."
    )
    discipline: Literal["fifo", "processor_sharing"] = Field(
        default="fifo", description="Who of the calls in it is worked on."
    )


class Kind(_Part):
    """A method or a message size. The short form is its name alone."""

    name: Text = Field(description="As in a trace.")
    popularity: Positive = Field(default=1.0, description="Relative frequency.")
    cost: Positive = Field(default=1.0, description="Relative service time.")

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data


class ParetoSizes(_Part):
    """Message sizes, equally popular, whose cost is what a Pareto law has in equal shares."""

    alpha: Annotated[float, Field(gt=1, le=10)] = Field(description="Smaller is more uneven.")
    buckets: Annotated[int, Field(ge=2, le=100)] = Field(description="Number of sizes.")


def _numbered(word: str) -> Callable[[Any], Any]:
    """Reads a mere number of kinds as that many, alike but for their names."""

    def expand(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1_000:
            return tuple(f"{word}-{index}" for index in range(value))
        return value

    return expand


Methods = Annotated[tuple[Kind, ...], BeforeValidator(_numbered("method"))]
Sizes = Annotated[tuple[Kind, ...], BeforeValidator(_numbered("size"))]


class RequestClasses(_Part):
    """What is asked: every method with every message size."""

    methods: Methods = Field(
        default=(Kind(name="method-0"),), description="A number of alike, or a list."
    )
    message_sizes: Sizes = Field(
        default=(Kind(name="size-0"),), description="A number of alike, or a list."
    )
    pareto_sizes: ParetoSizes | None = Field(
        default=None, description="Message sizes by a Pareto law, instead of a list."
    )


class Empty(_Part):
    """A law without parameters: `{}`."""


class Lognormal(_Part):
    """exp of a normal variable."""

    sigma: Annotated[float, Field(ge=0, le=5)] = Field(description="Deviation of the logarithm.")


class Bimodal(_Part):
    """Two values."""

    ratio: Annotated[float, Field(ge=1, le=1e6)] = Field(description="Large over small value.")
    share: Share = Field(description="Share of calls that take the large one.")


class Pareto(_Part):
    """Heavy tail."""

    alpha: Annotated[float, Field(gt=1, le=100)] = Field(
        description="Finite variance only above 2."
    )


class Affinity(_Part):
    """Methods that some endpoints are good at: method m is faster in group m, endpoint i stands in
    group i, both modulo `groups`."""

    groups: Annotated[int, Field(ge=1, le=1_000)] | None = Field(
        default=None, description="Number of groups."
    )
    factor: Positive = Field(default=4.0, description="Other groups take so many times longer.")
    every: Count = Field(default=1, description="1: all methods, 2: every second one has it.")
    matrix: tuple[tuple[Positive, ...], ...] | None = Field(
        default=None, description="Factors instead: a row per method, a column per group."
    )


class ServiceTime(_Part):
    """How long a worker of speed 1 is busy with a call; exactly one law."""

    mean: Duration = Field(description="Over all calls and all endpoints alike.")
    constant: Empty | None = Field(default=None, description="Always the same.")
    exponential: Empty | None = Field(default=None, description="Memoryless.")
    lognormal: Lognormal | None = Field(default=None, description="exp of a normal variable.")
    bimodal: Bimodal | None = Field(default=None, description="Two values.")
    pareto: Pareto | None = Field(default=None, description="Heavy tail.")
    affinity: Affinity | None = Field(default=None, description="Who is good at what.")


class ZonePair(_Part):
    """The round trip between two zones."""

    zones: tuple[Text, Text] = Field(description="In either order.")
    rtt: Duration = Field(description="There and back.")


class Network(_Part):
    """Round trips; a report travels with its answer."""

    rtt: Duration = Field(default=timedelta(0), description="Where no pair says otherwise.")
    pairs: tuple[ZonePair, ...] = Field(default=(), description="Pairs of zones.")


class Mmpp(_Part):
    """Bursts: two rates, each for an exponential time; the mean rate stays."""

    factor: Annotated[float, Field(ge=1, le=1e6)] = Field(description="High over mean rate.")
    burst: Duration = Field(description="Mean length of a burst.")
    calm: Duration = Field(description="Mean time between bursts.")


class Ramp(_Part):
    """From one multiple of the rate to another."""

    from_: float = Field(alias="from", ge=0, le=1e6, description="Until `at`.")
    to: float = Field(ge=0, le=1e6, description="From `at` + `over` on.")
    at: Duration = Field(default=timedelta(0), description="From the start of the run.")
    over: Duration = Field(description="How long it changes.")


class AccessLog(_Part):
    """Traffic of real sidecars. The short form is a file, or a list of files."""

    files: Annotated[tuple[Text, ...], Field(min_length=1, max_length=10_000)] = Field(
        description="One per sidecar, relative to the scenario."
    )
    service: Text | None = Field(
        default=None, description="Whose calls; needed where the files have those of several."
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"files": (data,)}
        return {"files": data} if isinstance(data, tuple) else data


class Load(_Part):
    """Open loop; exactly one of `fraction`, `rps`, `trace` and `access_log`."""

    fraction: Positive | None = Field(
        default=None, description="Of what the endpoints can do, blind to classes."
    )
    rps: Positive | None = Field(default=None, description="Calls per second over all sidecars.")
    trace: Text | None = Field(
        default=None, description="File of recorded calls, relative to the scenario."
    )
    access_log: AccessLog | None = Field(
        default=None, description="Access logs of sidecars, with the request classes in them."
    )
    mmpp: Mmpp | None = Field(default=None, description="Bursts.")
    ramp: Ramp | None = Field(default=None, description="A rate that changes.")


class Selection(_Part):
    """Which endpoints: of a group or of all, the first of each so many, at most so many."""

    group: Text | None = Field(default=None, description="Name of a group.")
    every: Count | None = Field(default=None, description="The first of each so many.")
    count: Count | None = Field(default=None, description="At most so many.")


class Cold(_Part):
    """How an endpoint starts."""

    speed: Positive = Field(description="Factor on its speed.")
    for_: Duration = Field(alias="for", description="How long.")


class Lasting(_Part):
    endpoints: Selection = Field(default_factory=Selection, description="Which; all by default.")
    for_: Duration = Field(
        alias="for", default=timedelta(0), description="How long; to the end by default."
    )


class Slow(Lasting):
    """Endpoints work at a fraction of their speed."""

    speed: Positive = Field(description="Factor on the speed.")


class Fail(Lasting):
    """Calls end UNAVAILABLE."""

    mode: Literal["trailers_only", "after_headers"] = Field(
        default="trailers_only",
        description="At once and without work, or once the work is done.",
    )
    share: Share = Field(default=1.0, description="Share of the calls.")


class Hang(Lasting):
    """Nothing is worked on; connections stay."""


class ReportLoss(Lasting):
    """Answers carry no load report."""


class ModelFault(_Part):
    """The model says something wrong; only `learned` has one."""

    fault: Literal["random", "permuted", "inverted", "nan", "collapsing"] = Field(
        description="Anything; what is true of other endpoints; slow for fast; not a number; two "
        "endpoints fifty times too fast."
    )
    for_: Duration = Field(
        alias="for", default=timedelta(0), description="How long; to the end by default."
    )


class TrainerDown(_Part):
    """The trainer is gone, and with it what sidecars tell each other."""

    for_: Duration = Field(
        alias="for", default=timedelta(0), description="How long; to the end by default."
    )


class Restart(_Part):
    """Connections break, the calls in it fail, connects are refused; it comes back empty."""

    endpoints: Selection = Field(default_factory=Selection, description="Which; all by default.")
    down: Duration = Field(default=timedelta(0), description="How long; to the end by default.")
    cold: Cold | None = Field(default=None, description="Once it is back.")


class Add(_Part):
    """More endpoints of a group."""

    group: Text = Field(default="all", description="Its name.")
    count: Count = Field(description="How many.")
    cold: Cold | None = Field(default=None, description="At first.")


class Remove(_Part):
    """Endpoints leave the set, and finish what they have."""

    endpoints: Selection = Field(default_factory=Selection, description="Which; all by default.")


class Event(_Part):
    """Something that happens; exactly one action."""

    at: Duration = Field(description="From the start of the run.")
    slow: Slow | None = Field(default=None, description="Endpoints are slow.")
    fail: Fail | None = Field(default=None, description="Calls fail.")
    hang: Hang | None = Field(default=None, description="Endpoints hang.")
    restart: Restart | None = Field(default=None, description="Endpoints crash and come back.")
    add: Add | None = Field(default=None, description="Endpoints join.")
    remove: Remove | None = Field(default=None, description="Endpoints leave.")
    affinity_shift: Empty | None = Field(
        default=None, description="Every affinity moves to the next group."
    )
    report_loss: ReportLoss | None = Field(default=None, description="Reports are lost.")
    model_fault: ModelFault | None = Field(default=None, description="The model is wrong.")
    trainer_down: TrainerDown | None = Field(default=None, description="The trainer is gone.")


class Noise(_Part):
    """Endpoints whose speed changes by itself, each for exponential times."""

    endpoints: Selection = Field(default_factory=Selection, description="Which; all by default.")
    speed: Positive = Field(description="Factor on the speed in the slow state.")
    slow: Duration = Field(description="Mean length of the slow state.")
    normal: Duration = Field(description="Mean time between two of them.")


class Reports(_Part):
    """What answers carry. The short form is `true` or `false`."""

    enabled: bool = Field(default=True, description="In-flight and rates, and what follows.")
    utilization: bool = Field(default=True, description="Busy share of the workers, queue.")
    service_time: bool = Field(default=False, description="Of the carrying call.")
    concurrency: bool = Field(default=False, description="Number of workers.")
    out_of_band: Duration = Field(
        default=timedelta(0), description="So often without an answer; never by default."
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"enabled": data} if isinstance(data, bool) else data


class Autoscale(_Part):
    """Endpoints follow utilization."""

    group: Text = Field(default="all", description="The group that grows and shrinks.")
    target: Share = Field(description="Utilization that is aimed at.")
    every: Duration = Field(default=timedelta(seconds=15), description="How often it looks.")
    delay: Duration = Field(
        default=timedelta(seconds=10), description="From the decision to the endpoint."
    )
    min: Count = Field(description="Fewest endpoints.")
    max: Count = Field(description="Most endpoints.")
    cold: Cold | None = Field(default=None, description="How new ones start.")


def _one_group(value: Any) -> Any:
    """Reads a mere number of endpoints as one group of them."""
    if isinstance(value, int) and not isinstance(value, bool):
        return ({"count": value},)
    return value


Groups = Annotated[tuple[EndpointGroup, ...], BeforeValidator(_one_group)]


class Scenario(_Part):
    """A whole scenario."""

    name: Text = Field(default="", description="In results; by default the file's name.")
    sidecars: Sidecars = Field(description="Who calls.")
    endpoints: Groups = Field(
        description="Who answers, at the beginning: a number of alike, or groups."
    )
    request_classes: RequestClasses = Field(
        default_factory=RequestClasses, description="What is asked."
    )
    service_time: ServiceTime = Field(description="How long a worker is busy.")
    network: Network = Field(default_factory=Network, description="Round trips.")
    load: Load = Field(description="How often it is asked.")
    events: tuple[Event, ...] = Field(default=(), description="What happens when.")
    noise: tuple[Noise, ...] = Field(default=(), description="Speed that changes by itself.")
    reports: Reports = Field(default_factory=Reports, description="What answers carry.")
    probes: bool = Field(default=True, description="Whether endpoints answer probes.")
    autoscale: Autoscale | None = Field(default=None, description="Endpoints come and go.")
    outlier_detection: OutlierDetection | None = Field(
        default=None,
        description="How sidecars leave ill endpoints alone, with the keys of the policy; `{}` "
        "switches it on, by default it is off.",
    )
    scrape_interval: Duration = Field(
        default=timedelta(seconds=5),
        description="How often the trainer reads what a model learns from; 1s to 10m.",
    )
    deadline: Duration = Field(default=timedelta(0), description="Of every call; none by default.")
    warmup: Duration = Field(description="Calls that arrive before count for nothing.")
    duration: Duration = Field(description="Length of what is measured.")
    allow_overload: bool = Field(
        default=False, description="The load may exceed what the endpoints can do."
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file, for editors."""
    return Scenario.model_json_schema()
