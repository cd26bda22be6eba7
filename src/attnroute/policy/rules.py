"""Rules between the fields of a policy, each with both places that contradict each other.

They read the tree, not the models: a rule holds as far as its own parts can be read, whatever else
is wrong in the file, so that an operator sees every mistake at once. What a rule cannot read has
been reported by the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, TypeVar

from attnroute.errors import Problem
from attnroute.policy import scalars
from attnroute.policy.balancers import Learned
from attnroute.policy.health import OutlierDetection
from attnroute.policy.listeners import KEYS_OF_MODE, MODES
from attnroute.policy.resilience import Retry
from attnroute.policy.schema import Connection, Drain, EndpointSource, ServiceLimits
from attnroute.policy.tree import Tree

__all__ = ["check_endpoints", "check_policy"]

Loc = tuple[str | int, ...]
_T = TypeVar("_T")


def check_policy(tree: Tree) -> list[Problem]:
    """Every broken rule of a policy file."""
    problems = [
        *_listener_addresses(tree),
        *_listener_names(tree),
        *_listener_services(tree),
        *_some_service(tree),
        *_listener_keys(tree),
        *_targets(tree),
        *_authorities(tree),
        *_order(tree, ("drain",), "linger", "limit", Drain()),
        *_model(tree),
    ]
    for name in _mapping(tree, ("services",)):
        at: Loc = ("services", name)
        problems += _sources(tree, at)
        problems += _routes(tree, at)
        problems += _repetitions(tree, at)
        problems += _balancer(tree, at)
        problems += _scorers(tree, at)
        problems += _order(tree, (*at, "connection"), "backoff_base", "backoff_max", Connection())
        problems += _order(
            tree,
            (*at, "outlier_detection"),
            "base_ejection",
            "max_ejection",
            OutlierDetection(),
        )
    return problems


def _model(tree: Tree) -> Iterator[Problem]:
    model = tree.get("model")
    if not isinstance(model, dict):
        return
    given = [key for key in ("registry", "directory") if model.get(key) is not None]
    if not given:
        yield tree.problem(("model",), "`model` names no source; write `registry` or `directory`")
    elif len(given) > 1:
        yield tree.problem(
            ("model", "directory"),
            f"`model` has `registry` already, at {tree.line_of(('model', 'registry'))}; keep one",
        )
    if "directory" in given and model.get("name") is not None:
        yield tree.problem(
            ("model", "name"), "the directory's own name is the model's; remove `name`"
        )


def _scorers(tree: Tree, at: Loc) -> Iterator[Problem]:
    names = _items(tree, (*at, "scorers"))
    if names and tree.get(*at, "balancer", "type") != "learned":
        yield tree.problem(
            (*at, "scorers"), "only `learned` goes by scores; set `balancer: {type: learned}`"
        )
    for index, name in enumerate(names):
        if name in names[:index]:
            yield tree.problem((*at, "scorers", index), f"scorer `{name}` stands twice; remove one")


def check_endpoints(tree: Tree, at: Loc, count_max: int | None = None) -> Iterator[Problem]:
    """Addresses that stand twice in the list at `at`, and a list above its limit."""
    count = len(_items(tree, at))
    if count_max is not None and count > count_max:
        yield tree.problem(
            at, f"{count} endpoints, but `limits.max_endpoints` is {count_max}; raise it"
        )
    first: dict[str, Loc] = {}
    for loc, address in _addresses(tree, at):
        if address in first:
            yield tree.problem(
                loc,
                f"endpoint `{address}` stands twice, first at {tree.line_of(first[address])}; "
                "remove one",
            )
        else:
            first[address] = loc


def _addresses(tree: Tree, at: Loc) -> Iterator[tuple[Loc, str]]:
    """Place and address of each endpoint in the list at `at` that can be read."""
    for index, item in enumerate(_items(tree, at)):
        loc: Loc = (*at, index, "address") if isinstance(item, dict) else (*at, index)
        raw = item.get("address") if isinstance(item, dict) else item
        address = _read(scalars.parse_address, raw)
        if address is not None:
            yield loc, address


def _bound(tree: Tree) -> Iterator[tuple[Loc, str]]:
    """Place and address of everything that the sidecar binds, as far as it can be read."""
    places: list[tuple[Loc, Any, Any]] = [
        (("listeners", index, "address"), item.get("address"), scalars.parse_address)
        for index, item in enumerate(_items(tree, ("listeners",)))
        if isinstance(item, dict)
    ]
    defaults = {"grpc": "127.0.0.1:15010", "http": "127.0.0.1:15011"}
    admin = _mapping(tree, ("admin",))
    for key, default in defaults.items():
        places.append((("admin", key), admin.get(key, default), scalars.parse_address))
    places.append((("admin", "socket"), admin.get("socket"), scalars.parse_socket_path))
    for loc, raw, parse in places:
        address = _read(parse, raw)
        if address is not None:
            yield loc, f"unix:{address}" if parse is scalars.parse_socket_path else address


def _listener_addresses(tree: Tree) -> Iterator[Problem]:
    taken: list[tuple[str, Loc]] = []
    for loc, address in _bound(tree):
        rival = next((other for known, other in taken if _collide(known, address)), None)
        if rival is not None:
            # A default has no place; the other one then carries the message.
            here, there = (loc, rival) if tree.has(loc) else (rival, loc)
            by = (
                f"at {tree.line_of(there)}" if tree.has(there) else f"by `{_name(there)}` (default)"
            )
            yield tree.problem(
                here, f"address `{address}` is taken {by} already; choose another one"
            )
        taken.append((address, loc))


def _collide(one: str, other: str) -> bool:
    """Whether both cannot be bound: the same, or one of them covers every address of the port."""
    if scalars.port_of(one) == 0 or scalars.port_of(one) != scalars.port_of(other):
        return False
    if one == other:
        return True
    if scalars.port_of(one) is None:
        return False
    hosts = {address.rpartition(":")[0] for address in (one, other)}
    same_family = one.startswith("[") == other.startswith("[")
    return "[::]" in hosts or ("0.0.0.0" in hosts and same_family)  # noqa: S104


def _leads_to(bound: str, dialled: str) -> bool:
    """Whether who dials that address on this machine reaches what is bound here. Whether another
    address is one of this machine shows only where the policy runs."""
    if bound == dialled:
        return scalars.port_of(bound) != 0
    return _collide(bound, dialled) and dialled.startswith(("127.", "[::1]:"))


def _listener_names(tree: Tree) -> Iterator[Problem]:
    first: dict[str, Loc] = {}
    for index, item in enumerate(_items(tree, ("listeners",))):
        if not isinstance(item, dict):
            continue
        loc: Loc = ("listeners", index, "name") if "name" in item else ("listeners", index)
        name = item.get("name", f"{item.get('mode')}-{index}")
        if not isinstance(name, str):
            continue
        if name in first:
            yield tree.problem(
                loc,
                f"listener `{name}` stands twice, first at {tree.line_of(first[name])}; give one "
                "another `name`",
            )
        first.setdefault(name, loc)


def _listener_services(tree: Tree) -> Iterator[Problem]:
    services = _mapping(tree, ("services",))
    for index, item in enumerate(_items(tree, ("listeners",))):
        if not isinstance(item, dict):
            continue
        name = item.get("service")
        if name is None and item.get("mode") == "service":
            yield tree.problem(
                ("listeners", index),
                f"`listeners[{index}]` has mode `service` but no `service`; name one",
            )
        if isinstance(name, str) and name not in services and tree.has(("services",)):
            known = ", ".join(f"`{service}`" for service in list(services)[:5]) or "none"
            yield tree.problem(
                ("listeners", index, "service"),
                f"service `{name}` is not in `services`; there are {known}",
            )


def _some_service(tree: Tree) -> Iterator[Problem]:
    """Only who stands in front of servers alone needs no service."""
    listeners = [item for item in _items(tree, ("listeners",)) if isinstance(item, dict)]
    if listeners and all(item.get("mode") == "inbound" for item in listeners):
        return
    if tree.get("services") == {}:
        yield tree.problem(("services",), "`services` is empty; write at least one entry")
    # A misspelled key is one mistake: its right spelling is not missing as well.
    elif not tree.has(("services",)) and not get_close_matches("services", _mapping(tree, ())):
        yield tree.problem((), "the file lacks the key `services`")


def _listener_keys(tree: Tree) -> Iterator[Problem]:
    """Keys that mean nothing in the mode of their listener, and those that it lacks."""
    for index, item in enumerate(_items(tree, ("listeners",))):
        mode = item.get("mode") if isinstance(item, dict) else None
        if mode not in MODES:
            continue
        at: Loc = ("listeners", index)
        for key, modes in KEYS_OF_MODE.items():
            if item.get(key) is not None and mode not in modes:
                yield tree.key_problem(
                    (*at, key),
                    f"`{key}` in `{_name(at)}` means nothing in mode `{mode}`; remove it",
                )
        if mode == "inbound" and item.get("target") is None:
            yield tree.problem(
                at, f"`{_name(at)}` has mode `inbound` but no `target`; write the server's address"
            )
        if mode == "inbound" and "queue" in item and item.get("max_concurrency") is None:
            yield tree.key_problem(
                (*at, "queue"),
                f"`queue` in `{_name(at)}` needs `max_concurrency`: without it no call waits; add "
                "it or remove `queue`",
            )


def _targets(tree: Tree) -> Iterator[Problem]:
    """Servers behind listeners: no part of this sidecar, and no service of the same name."""
    own = [(address, place) for place, address in _bound(tree)]
    services = _mapping(tree, ("services",))
    for index, item in enumerate(_items(tree, ("listeners",))):
        if not isinstance(item, dict) or item.get("mode") != "inbound":
            continue
        at: Loc = ("listeners", index)
        address = _read(scalars.parse_address, item.get("target"))
        if address is not None:
            yield from _itself(tree, own, (*at, "target"), address, "target")
        name = item.get("name", f"inbound-{index}")
        if isinstance(name, str) and name in services:
            yield tree.problem(
                (*at, "name") if "name" in item else at,
                f"listener `{name}` has the name of a service, at "
                f"{tree.line_of_key(('services', name))}; give one another name",
            )


def _itself(
    tree: Tree, own: list[tuple[str, Loc]], loc: Loc, address: str, what: str
) -> Iterator[Problem]:
    rival = next((where for known, where in own if _leads_to(known, address)), None)
    if rival is not None:
        by = f"at {tree.line_of(rival)}" if tree.has(rival) else "by default"
        yield tree.problem(
            loc,
            f"{what} `{address}` is this sidecar itself, `{_name(rival)}` {by}: calls would go "
            "round in a circle; write the address of the service",
        )


def _authorities(tree: Tree) -> Iterator[Problem]:
    first: dict[str, tuple[str, Loc]] = {}
    for name, service in _mapping(tree, ("services",)).items():
        at: Loc = ("services", name)
        raw = service.get("authorities") if isinstance(service, dict) else None
        listed = isinstance(raw, tuple) and raw
        values = raw if isinstance(raw, tuple) and raw else (name, f"{name}:*")
        for index, value in enumerate(values):
            authority = _read(scalars.parse_authority, value)
            if authority is None:
                continue
            loc: Loc = (*at, "authorities", index) if listed else at
            if authority in first:
                owner, place = first[authority]
                yield _place(
                    tree,
                    loc,
                    f"authority `{authority}` of service `{name}` belongs to service `{owner}` "
                    f"already, at {_where(tree, place)}; remove one",
                )
            first.setdefault(authority, (name, loc))


def _place(tree: Tree, loc: Loc, message: str) -> Problem:
    """At the value of a list's entry, else at the key."""
    return (
        tree.problem(loc, message) if isinstance(loc[-1], int) else tree.key_problem(loc, message)
    )


def _where(tree: Tree, loc: Loc) -> str:
    return tree.line_of(loc) if isinstance(loc[-1], int) else tree.line_of_key(loc)


def _sources(tree: Tree, at: Loc) -> Iterator[Problem]:
    loc: Loc = (*at, "endpoints")
    several = _items(tree, loc)
    # An inbound listener leads to its server, in no circle.
    bound = [(address, place) for place, address in _bound(tree)]
    own = [each for each in bound if tree.get(*each[1][:-1], "mode") != "inbound"]
    for each in [(*loc, index) for index in range(len(several))] if several else [loc]:
        yield from _source(tree, each)
        static: Loc = (*each, "static")
        yield from check_endpoints(tree, static, _max_endpoints(tree, at))
        for place, address in _addresses(tree, static):
            yield from _itself(tree, own, place, address, "endpoint")


def _source(tree: Tree, loc: Loc) -> Iterator[Problem]:
    source = tree.get(*loc)
    if not isinstance(source, dict):
        return
    known = ("static", "file", "dns")
    given = [key for key in source if key in known and source[key] is not None]
    reserved = [key for key in EndpointSource.RESERVED if key in source]
    if not given and not reserved:
        yield tree.problem(loc, f"`{_name(loc)}` names no source; write `static`, `file` or `dns`")
    if len(given) > 1:
        yield tree.key_problem(
            (*loc, given[1]),
            f"`{_name(loc)}` has both `{given[0]}`, at {tree.line_of_key((*loc, given[0]))}, and "
            f"`{given[1]}`; keep one, or write a list of sources",
        )
    if given == ["static"] and "refresh" in source:
        yield tree.key_problem(
            (*loc, "refresh"), f"`refresh` in `{_name(loc)}` means nothing for `static`; remove it"
        )


def _routes(tree: Tree, at: Loc) -> Iterator[Problem]:
    first: dict[tuple[str, str], Loc] = {}
    for index, route in enumerate(_items(tree, (*at, "routes"))):
        match = route.get("match") if isinstance(route, dict) else None
        if not isinstance(match, dict):
            continue
        loc: Loc = (*at, "routes", index, "match")
        given = [key for key in ("path", "path_prefix") if match.get(key) is not None]
        if len(given) != 1:
            found = "both" if given else "neither"
            yield tree.problem(
                loc, f"`{_name(loc)}` has {found} of `path` and `path_prefix`; write one"
            )
            continue
        value = match[given[0]]
        if not isinstance(value, str):
            continue
        if (given[0], value) in first:
            earlier = tree.line_of((*first[given[0], value], given[0]))
            yield tree.problem(
                (*loc, given[0]), f"a route for `{value}` stands at {earlier} already; merge them"
            )
        first.setdefault((given[0], value), loc)


def _repetitions(tree: Tree, at: Loc) -> Iterator[Problem]:
    for index, route in enumerate(_items(tree, (*at, "routes"))):
        loc: Loc = (*at, "routes", index)
        yield from _order(tree, (*loc, "retry"), "backoff", "max_backoff", Retry())
        if not isinstance(route, dict):
            continue
        given = [key for key in ("retry", "hedge") if route.get(key) is not None]
        for key in given:
            if route.get("idempotent", False) is False:
                yield tree.key_problem(
                    (*loc, key),
                    f"`{_name(loc)}` has `{key}`, which can have a call processed twice, without "
                    "`idempotent: true`; write that if its calls may be, or remove it",
                )
        if len(given) > 1:
            yield tree.key_problem(
                (*loc, "hedge"),
                f"`{_name(loc)}` has both `retry`, at {tree.line_of_key((*loc, 'retry'))}, and "
                "`hedge`; keep one",
            )


def _balancer(tree: Tree, at: Loc) -> Iterator[Problem]:
    loc: Loc = (*at, "balancer")
    balancer = _mapping(tree, loc)
    if balancer.get("choice_count") == "all" and balancer.get("with_replacement") is True:
        yield tree.key_problem(
            (*loc, "with_replacement"),
            f"`with_replacement` in `{_name(loc)}` needs draws, but `choice_count` is `all`; "
            "remove one",
        )
    if balancer.get("type") == "learned":
        default = Learned(type="learned")
        yield from _order(tree, loc, "scores_stale_after", "fallback_after", default)


def _order(tree: Tree, at: Loc, low: str, high: str, defaults: object) -> Iterator[Problem]:
    """`low` must not exceed `high`."""
    given = _mapping(tree, at)
    values: dict[str, timedelta] = {}
    for name in (low, high):
        default: timedelta = getattr(defaults, name)
        value = _read(scalars.parse_duration, given[name]) if name in given else default
        if value is None:
            return
        values[name] = value
    if values[low] <= values[high]:
        return
    key, other = (low, high) if low in given else (high, low)
    texts = {name: scalars.format_duration(value) for name, value in values.items()}
    origin = f" at {tree.line_of((*at, other))}" if other in given else " (default)"
    relation = "exceeds" if key == low else "is below"
    yield tree.problem(
        (*at, key),
        f"`{key}` in `{_name(at)}`: `{texts[key]}` {relation} `{other}`, `{texts[other]}`{origin}; "
        "change one",
    )


def _max_endpoints(tree: Tree, at: Loc) -> int:
    limit = _mapping(tree, (*at, "limits")).get("max_endpoints")
    return limit if isinstance(limit, int) and limit > 0 else ServiceLimits().max_endpoints


def _mapping(tree: Tree, loc: Loc) -> Mapping[str, Any]:
    value = tree.get(*loc)
    return value if isinstance(value, dict) else {}


def _items(tree: Tree, loc: Loc) -> tuple[Any, ...]:
    value = tree.get(*loc)
    return value if isinstance(value, tuple) else ()


def _read(parse: Callable[[object], _T], raw: object) -> _T | None:
    try:
        return None if raw is None else parse(raw)
    except ValueError:
        return None


def _name(loc: Loc) -> str:
    text = ""
    for item in loc:
        text += f"[{item}]" if isinstance(item, int) else f".{item}" if text else str(item)
    return text
