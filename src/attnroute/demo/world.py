"""What the demo emulates: endpoints, request classes and the weather, as data and arithmetic.

Endpoints are uneven in the three ways that matter in production: hardware generation (speed), class
(an endpoint serves the request classes of its own group faster, as a warm cache would) and time (a
noisy neighbour slows an endpoint down for a while). Everything here is a pure function of a seed:
every balancer meets the same arrivals, the same work and the same weather, so that a difference
between two rows of the closing table comes from the balancer. How much work a call is travels in
the call; how fast it is done depends on the endpoint and the moment.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

SERVICE = "shop"
"""Name and `:authority` of the emulated service."""

GRPC_SERVICE = "demo.Shop"
"""gRPC service name; a method's path is `/demo.Shop/<Method>`."""


@dataclass(frozen=True, slots=True)
class Weather:
    """A noisy neighbour: exponential spells of normal speed and of slowness."""

    slow_speed: float = 0.3
    slow_s: float = 2.0
    normal_s: float = 6.0

    @property
    def mean_speed(self) -> float:
        """Speed averaged over time, relative to normal."""
        total_s = self.slow_s + self.normal_s
        return (self.slow_speed * self.slow_s + self.normal_s) / total_s


@dataclass(frozen=True, slots=True)
class EndpointModel:
    """One emulated endpoint. speed: 2.0 does twice the work per second of 1.0."""

    speed: float = 1.0
    group: int = 0
    workers: int = 2
    weather: Weather | None = None

    @property
    def mean_speed(self) -> float:
        """Speed averaged over the weather."""
        return self.speed * (1.0 if self.weather is None else self.weather.mean_speed)


@dataclass(frozen=True, slots=True)
class RequestClass:
    """A method with one message size. cost: mean work relative to the other classes."""

    method: str
    message_bytes: int
    popularity: float
    cost: float
    group: int | None = None
    """Endpoints of this group serve it faster; None: no endpoint does."""

    @property
    def path(self) -> str:
        """The `:path` of its calls."""
        return f"/{GRPC_SERVICE}/{self.method}"


@dataclass(frozen=True)
class World:
    """A fleet and what is asked of it."""

    name: str
    summary: str
    endpoints: tuple[EndpointModel, ...]
    classes: tuple[RequestClass, ...]
    mean_work_s: float = 0.06
    """Service time at speed 1, averaged over classes and endpoints."""
    own_group_factor: float = 4.0
    """How much faster an endpoint serves the classes of its own group."""
    load: float = 0.7
    """Calls per second as a share of `capacity_per_s`."""
    sigma: float = 0.8
    """Spread of the work of single calls (lognormal, mean 1)."""

    @cached_property
    def _scale_s(self) -> float:
        """Seconds of one unit of cost, so that the mean work comes out as `mean_work_s`."""
        count = len(self.endpoints)
        mean = sum(
            request_class.popularity * request_class.cost * self._affinity(request_class, endpoint)
            for request_class in self.classes
            for endpoint in self.endpoints
        )
        return self.mean_work_s * count / mean

    def _affinity(self, request_class: RequestClass, endpoint: EndpointModel) -> float:
        return 1.0 / self.own_group_factor if request_class.group == endpoint.group else 1.0

    def work_s(self, class_index: int, endpoint_index: int) -> float:
        """Mean service time in seconds of a class on an endpoint, at speed 1."""
        request_class, endpoint = self.classes[class_index], self.endpoints[endpoint_index]
        return self._scale_s * request_class.cost * self._affinity(request_class, endpoint)

    def mean_work_of_endpoint_s(self, endpoint_index: int) -> float:
        """Service time in seconds at speed 1 over the whole mix of classes."""
        return sum(
            request_class.popularity * self.work_s(index, endpoint_index)
            for index, request_class in enumerate(self.classes)
        )

    @cached_property
    def capacity_per_s(self) -> float:
        """Calls per second the fleet can serve if every endpoint gets every class alike."""
        return sum(
            endpoint.workers * endpoint.mean_speed / self.mean_work_of_endpoint_s(index)
            for index, endpoint in enumerate(self.endpoints)
        )

    @property
    def calls_per_s(self) -> float:
        """The load of the demo."""
        return self.load * self.capacity_per_s

    @cached_property
    def slow_endpoints(self) -> frozenset[int]:
        """Indices of the endpoints slower than the fleet's mean; empty where all are alike."""
        mean = sum(endpoint.mean_speed for endpoint in self.endpoints) / len(self.endpoints)
        return frozenset(
            index
            for index, endpoint in enumerate(self.endpoints)
            if endpoint.mean_speed < mean * 0.999
        )

    @cached_property
    def class_of(self) -> dict[tuple[str, int], int]:
        """(path, message bytes) -> class index: all an endpoint sees of a call."""
        return {
            (request_class.path, request_class.message_bytes): index
            for index, request_class in enumerate(self.classes)
        }


class Timeline:
    """The speed of one endpoint over a slice, the same whenever the slice is played again."""

    def __init__(self, endpoint: EndpointModel, key: str) -> None:
        self._endpoint = endpoint
        self._changes = _changes(endpoint, random.Random(key))
        self._known: list[tuple[float, float]] = [next(self._changes)]

    def finish_s(self, start_s: float, work_s: float) -> float:
        """When work begun at start_s ends, both in seconds from the start of the slice.

        work_s is the service time at speed 1. A change of speed in the middle counts from its
        moment on.
        """
        now_s, left_s = max(0.0, start_s), work_s
        index = 0
        while True:
            end_s, speed = self._spell(index)
            index += 1
            if end_s <= now_s:
                continue
            if left_s <= (end_s - now_s) * speed:
                return now_s + left_s / speed
            left_s -= (end_s - now_s) * speed
            now_s = end_s

    def _spell(self, index: int) -> tuple[float, float]:
        while index >= len(self._known):
            self._known.append(next(self._changes))
        return self._known[index]


def _changes(endpoint: EndpointModel, source: random.Random) -> Iterator[tuple[float, float]]:
    """Endless (end of the spell in seconds, speed in it), in order."""
    weather = endpoint.weather
    if weather is None:
        while True:
            yield float("inf"), endpoint.speed
    end_s = 0.0
    slow = source.random() < weather.slow_s / (weather.slow_s + weather.normal_s)
    while True:
        end_s += source.expovariate(1.0 / (weather.slow_s if slow else weather.normal_s))
        yield end_s, endpoint.speed * (weather.slow_speed if slow else 1.0)
        slow = not slow


_SIZES = ((256, 0.5, 0.8), (4 * 1024, 0.3, 1.1), (32 * 1024, 0.2, 1.5))
"""(message bytes, popularity, cost)."""

_GROUPS = 4
_METHODS: tuple[tuple[str, float, float, tuple[int | None, ...]], ...] = (
    ("Browse", 0.3, 0.8, (None, None, None)),
    ("Search", 0.3, 1.0, (0, 2, 3)),
    ("Basket", 0.2, 0.9, (None, None, None)),
    ("Order", 0.2, 1.5, (1, 3, 2)),
)
"""(method, popularity, cost, group by message size). Every second method knows groups; they are
dealt out so that each group owns about as much work as the next."""


def _shop(*, own_groups: bool) -> tuple[RequestClass, ...]:
    """Four methods times three message sizes."""
    return tuple(
        RequestClass(
            method=method,
            message_bytes=message_bytes,
            popularity=popularity * size_popularity,
            cost=cost * size_cost,
            group=group if own_groups else None,
        )
        for method, popularity, cost, groups in _METHODS
        for (message_bytes, size_popularity, size_cost), group in zip(_SIZES, groups, strict=True)
    )


def _fleet(*, fast: int = 0, noisy: int = 0, count: int = 12) -> tuple[EndpointModel, ...]:
    """The last `fast` endpoints are twice as fast; the last `noisy` have a noisy neighbour."""
    return tuple(
        EndpointModel(
            speed=2.0 if index >= count - fast else 1.0,
            group=index % _GROUPS,
            weather=Weather() if index >= count - noisy else None,
        )
        for index in range(count)
    )


WORLDS: dict[str, World] = {
    world.name: world
    for world in (
        World(
            "mixed",
            "two hardware generations, own groups, noisy neighbours",
            _fleet(fast=4, noisy=2),
            _shop(own_groups=True),
        ),
        World("generations", "a third is twice as fast", _fleet(fast=4), _shop(own_groups=False)),
        World("affinity", "own classes are four times faster", _fleet(), _shop(own_groups=True)),
        World("noisy", "a third has noisy neighbours", _fleet(noisy=4), _shop(own_groups=False)),
    )
}
