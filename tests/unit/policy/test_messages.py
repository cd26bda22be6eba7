"""What an operator reads: place and text of every kind of mistake."""

from __future__ import annotations

import pytest
from tests.support.policies import MINIMAL, problems, with_service, with_top

from attnroute import __version__

BALANCERS = (
    "`round_robin`, `least_request`, `random`, `weighted_round_robin`, `peak_ewma`, `c3`, "
    "`prequal`, `latency_observation`, `ring_hash`, `maglev` or `learned`"
)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        # Unknown keys, with the nearest known one.
        (
            "outlier_detecton: {}",
            (
                "4:9: unknown key `outlier_detecton` in `services.cart`; did you mean "
                "`outlier_detection`?"
            ),
        ),
        ("limts: {}", "4:9: unknown key `limts` in `services.cart`; did you mean `limits`?"),
        (
            "timeout: 2s",
            (
                "4:9: unknown key `timeout` in `services.cart`; it belongs into "
                "`services.<name>.routes[]`"
            ),
        ),
        (
            "backof_max: 2s",
            (
                "4:9: unknown key `backof_max` in `services.cart`; did you mean "
                "`backoff_max`, which "
                "belongs into `services.<name>.connection`?"
            ),
        ),
        (
            "zzz: 2s",
            (
                "4:9: unknown key `zzz` in `services.cart`; known are `authorities`, `endpoints`, "
                "`balancer`, `scorers`, `concurrency`, `request_class`, `locality`, "
                "`outlier_detection`, `health`, `panic_threshold`, `slow_start`, "
                "`load_reports`, `strip_load_reports`, `limits`, `connection`, `waiting`, "
                "`routes`, keys of your own begin with `x-`"
            ),
        ),
        # Balancers.
        (
            "scorers: [by_hour]",
            "4:18: only `learned` goes by scores; set `balancer: {type: learned}`",
        ),
        (
            "balancer: {type: learned, fallback_after: 20s}",
            (
                "4:51: `fallback_after` in `services.cart.balancer`: `20s` is below "
                "`scores_stale_after`, `30s` (default); change one"
            ),
        ),
        (
            "balancer: {type: round_robbin}",
            (
                "4:26: `type` in `services.cart.balancer`: found `round_robbin`, expected "
                f"{BALANCERS}; did you mean `round_robin`?"
            ),
        ),
        (
            "balancer: {type: oracle}",
            (
                "4:26: `type` in `services.cart.balancer`: found `oracle`, which exists "
                "only in the "
                f"simulator; expected {BALANCERS}"
            ),
        ),
        (
            "balancer: {type: 77}",
            f"4:26: `type` in `services.cart.balancer`: found `77`, expected {BALANCERS}",
        ),
        (
            "balancer: {choice_count: 2}",
            f"4:19: `balancer` in `services.cart` lacks the key `type`; expected {BALANCERS}",
        ),
        (
            "balancer: round_robin",
            (
                "4:19: `balancer` in `services.cart`: found `round_robin`, expected a "
                "mapping; write "
                "`{type: round_robin}`"
            ),
        ),
        (
            "balancer: {type: maglev, table_size: 65536}",
            (
                "4:46: `table_size` in `services.cart.balancer`: found `65536`, expected a "
                "prime up to 5000011, such as 65537"
            ),
        ),
        (
            "balancer: {type: ring_hash, header: X-User}",
            (
                "4:45: `header` in `services.cart.balancer`: found `X-User`, expected the "
                "name of a header in lower case"
            ),
        ),
        (
            "balancer: {type: prequal, hot_quantile: 120%}",
            (
                "4:49: `hot_quantile` in `services.cart.balancer`: found `120%`, expected a "
                "share from `0%` to `100%`, or from 0 to 1"
            ),
        ),
        (
            "balancer: {type: maglev, bounded_load: 0.5}",
            (
                "4:48: `bounded_load` in `services.cart.balancer`: found `0.5`, expected a "
                "number from 1 to 1000000, or 0 for unbounded"
            ),
        ),
        (
            "slow_start: {window: 30s, aggression: 0}",
            ("4:47: `aggression` in `services.cart.slow_start`: found `0`, expected more than 0"),
        ),
        (
            "balancer: {type: least_request, choice_count: 1}",
            (
                "4:55: `choice_count` in `services.cart.balancer`: found `1`, expected a "
                "whole number "
                "from 2 to 100, or `all`"
            ),
        ),
        (
            "balancer: {type: round_robin, choice_count: 2}",
            (
                "4:39: unknown key `choice_count` in `services.cart.balancer`; it belongs into "
                "`services.<name>.balancer`"
            ),
        ),
        (
            "balancer: {type: least_request, choice_count: all, with_replacement: true}",
            (
                "4:60: `with_replacement` in `services.cart.balancer` needs draws, but "
                "`choice_count` "
                "is `all`; remove one"
            ),
        ),
        # Types and bounds.
        (
            "limits: {max_inflight: 0}",
            "4:32: `max_inflight` in `services.cart.limits`: found `0`, expected at least 1",
        ),
        (
            "limits: {max_held_bytes: 512}",
            (
                "4:34: `max_held_bytes` in `services.cart.limits`: found `512`, expected a size "
                "from `1KiB` to `1024GiB`"
            ),
        ),
        (
            "limits: {max_held_bytes_per_endpoint: none}",
            (
                "4:47: `max_held_bytes_per_endpoint` in `services.cart.limits`: found `none`, "
                "expected a size from `1KiB` to `1024GiB`, or `unlimited`"
            ),
        ),
        (
            "limits: {max_inflight: 4294967296}",
            (
                "4:32: `max_inflight` in `services.cart.limits`: found `4294967296`, "
                "expected at most "
                "4294967295"
            ),
        ),
        (
            "limits: {max_inflight: 1.5}",
            "4:32: `max_inflight` in `services.cart.limits`: found `1.5`, expected a whole number",
        ),
        (
            'limits: {max_inflight: "12"}',
            "4:32: `max_inflight` in `services.cart.limits`: found `12`, expected a whole number",
        ),
        (
            "limits: {max_inflight: 010}",
            (
                "4:32: `max_inflight` in `services.cart.limits`: found `010`, which "
                "reads as an octal "
                "number in some versions of YAML, expected a whole number"
            ),
        ),
        (
            "limits: 7",
            "4:17: `limits` in `services.cart`: found `7`, expected a mapping",
        ),
        (
            "limits: ",
            (
                "4:17: `limits` in `services.cart`: found nothing, expected a mapping; "
                "leave out the "
                "key for its default"
            ),
        ),
        (
            "routes: {}",
            "4:17: `routes` in `services.cart`: found a mapping, expected a list",
        ),
        (
            "authorities: []",
            (
                "4:22: `authorities` in `services.cart` is empty; write at least one "
                "entry or leave "
                "out the key for the default"
            ),
        ),
        (
            "connection: {connect_timeout: 400}",
            (
                "4:39: `connect_timeout` in `services.cart.connection`: found `400`, a "
                "duration needs "
                "a unit; write `400ms` or `400s`"
            ),
        ),
        (
            "connection: {connect_timeout: 0}",
            (
                "4:39: `connect_timeout` in `services.cart.connection`: found `0`, "
                "expected a duration "
                "from `1ms` to `24h`"
            ),
        ),
        (
            "connection: {connect_timeout: 1500us}",
            (
                "4:39: `connect_timeout` in `services.cart.connection`: found `1500us`, the finest "
                "step here is `1ms`"
            ),
        ),
        (
            "connection: {backoff_base: 2s}",
            (
                "4:36: `backoff_base` in `services.cart.connection`: `2s` exceeds "
                "`backoff_max`, `1s` "
                "(default); change one"
            ),
        ),
        (
            "connection: {backoff_base: 2s, backoff_max: 1s}",
            (
                "4:36: `backoff_base` in `services.cart.connection`: `2s` exceeds "
                "`backoff_max`, `1s` "
                "at 4:53; change one"
            ),
        ),
        (
            "connection: {backoff_max: 50ms}",
            (
                "4:35: `backoff_max` in `services.cart.connection`: `50ms` is below "
                "`backoff_base`, "
                "`100ms` (default); change one"
            ),
        ),
        # Routes.
        (
            "routes: [{match: {path: shop}}]",
            (
                "4:33: `path` in `services.cart.routes[0].match`: found `shop`, a path begins with "
                "`/`; write `/shop`"
            ),
        ),
        (
            "routes: [{match: {}}]",
            (
                "4:26: `services.cart.routes[0].match` has neither of `path` and "
                "`path_prefix`; write "
                "one"
            ),
        ),
        (
            "routes: [{match: {path: /a, path_prefix: /a}}]",
            "4:26: `services.cart.routes[0].match` has both of `path` and `path_prefix`; write one",
        ),
        (
            "routes: [{match: {path: /a}}, {match: {path: /a}}]",
            "4:54: a route for `/a` stands at 4:33 already; merge them",
        ),
        ("routes: [{timeout: 1s}]", "4:18: `routes[0]` in `services.cart` lacks the key `match`"),
        # Calls that are tried again.
        (
            "routes: [{match: {path: /a}, retry: {}}]",
            (
                "4:38: `services.cart.routes[0]` has `retry`, which can have a call processed "
                "twice, without `idempotent: true`; write that if its calls may be, or remove it"
            ),
        ),
        (
            "routes: [{match: {path: /a}, idempotent: false, hedge: {at: p95}}]",
            (
                "4:57: `services.cart.routes[0]` has `hedge`, which can have a call processed "
                "twice, without `idempotent: true`; write that if its calls may be, or remove it"
            ),
        ),
        (
            "routes: [{match: {path: /a}, idempotent: true, retry: {}, hedge: {at: p95}}]",
            ("4:67: `services.cart.routes[0]` has both `retry`, at 4:56, and `hedge`; keep one"),
        ),
        (
            "routes: [{match: {path: /a}, idempotent: true, hedge: {at: p40}}]",
            (
                "4:68: `at` in `services.cart.routes[0].hedge`: found `p40`, expected a percentile "
                "from `p50` to `p99.9`, or a duration such as `50ms`"
            ),
        ),
        (
            (
                "routes: [{match: {path: /a}, idempotent: true, "
                "retry: {backoff: 2s, max_backoff: 1s}}]"
            ),
            (
                "4:73: `backoff` in `services.cart.routes[0].retry`: `2s` exceeds `max_backoff`, "
                "`1s` at 4:90; change one"
            ),
        ),
        (
            "routes: [{match: {path: /a}, idempotent: true, retry: {max_attempts: 1}}]",
            (
                "4:78: `max_attempts` in `services.cart.routes[0].retry`: found `1`, expected at "
                "least 2"
            ),
        ),
    ],
)
def test_mistakes_in_a_service(rest: str, message: str) -> None:
    assert problems(with_service(rest)) == [message]


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (
            "drain: {linger: 30s}\n",
            ("6:17: `linger` in `drain`: `30s` exceeds `limit`, `25s` (default); change one"),
        ),
        (
            "admin: {allow_changes: yes}\n",
            (
                "6:24: `allow_changes` in `admin`: found `yes`, expected "
                "`true` or `false`; write `true`"
            ),
        ),
        (
            "admin: {allow_changes: 1}\n",
            ("6:24: `allow_changes` in `admin`: found `1`, expected `true` or `false`"),
        ),
        (
            "admin: {http: localhost:1}\n",
            (
                "6:15: `http` in `admin`: found `localhost:1`, expected "
                "`ip:port` or `unix:/path`, and `localhost` is a name; write `127.0.0.1:1`"
            ),
        ),
        (
            "limits: {max_header_list_bytes: 64KB}\n",
            (
                "6:33: `max_header_list_bytes` in `limits`: "
                "found `64KB`, the units of a size are `B`, `KiB`, `MiB` and `GiB`; write `64KiB`"
            ),
        ),
        (
            "limits: {max_header_list_bytes: 100}\n",
            (
                "6:33: `max_header_list_bytes` in `limits`: "
                "found `100`, expected a size from `1KiB` to `16MiB`"
            ),
        ),
        (
            "model: {channel: stable}\n",
            "6:8: `model` names no source; write `registry` or `directory`",
        ),
        (
            "model: {registry: 'trainer:15020', directory: bundles/default}\n",
            "6:47: `model` has `registry` already, at 6:19; keep one",
        ),
        (
            "model: {directory: bundles/default, name: other}\n",
            "6:43: the directory's own name is the model's; remove `name`",
        ),
        ("services: {}\n", "6:1: key `services` stands twice, first at 3:1; remove one"),
        (
            "admin: {grpc: 127.0.0.1:15001}\n",
            ("6:15: address `127.0.0.1:15001` is taken at 2:31 already; choose another one"),
        ),
        (
            "data_plane: {busy_poll: 2ms}\n",
            (
                "6:25: `busy_poll` in `data_plane`: found `2ms`, "
                "expected a duration from `0s` to `1ms`"
            ),
        ),
        (
            "timeouts: {handshake: 500us}\n",
            (
                "6:23: `handshake` in `timeouts`: found `500us`, "
                "expected a duration from `1ms` to `24h`"
            ),
        ),
    ],
)
def test_mistakes_at_the_top(rest: str, message: str) -> None:
    assert problems(with_top(rest)) == [message]


@pytest.mark.parametrize(
    ("listener", "messages"),
    [
        (
            "{mode: transparent, address: 127.0.0.1:1}",
            [
                (
                    "1:20: `mode` in `listeners[0]`: found `transparent`, which comes in a "
                    f"later version; {__version__} has `explicit`, `service`, `inbound` or "
                    "`connect`"
                )
            ],
        ),
        (
            "{mode: connect, address: 127.0.0.1:1, service: cart}",
            ["1:51: `service` in `listeners[0]` means nothing in mode `connect`; remove it"],
        ),
        (
            "{mode: explict, address: 127.0.0.1:1}",
            [
                (
                    "1:20: `mode` in `listeners[0]`: found `explict`, expected "
                    "`explicit`, `service`, `inbound` or `connect`; did you mean `explicit`?"
                )
            ],
        ),
        (
            "{mode: inbound, address: 127.0.0.1:1}",
            ["1:13: `listeners[0]` has mode `inbound` but no `target`; write the server's address"],
        ),
        (
            "{mode: inbound, address: 127.0.0.1:1, target: 127.0.0.1:2, service: cart}",
            ["1:72: `service` in `listeners[0]` means nothing in mode `inbound`; remove it"],
        ),
        (
            "{mode: explicit, address: 127.0.0.1:1, max_concurrency: 4}",
            [
                (
                    "1:52: `max_concurrency` in `listeners[0]` means nothing in mode `explicit`; "
                    "remove it"
                )
            ],
        ),
        (
            "{mode: inbound, address: 127.0.0.1:1, target: 127.0.0.1:2, queue: {}}",
            [
                (
                    "1:72: `queue` in `listeners[0]` needs `max_concurrency`: without it no call "
                    "waits; add it or remove `queue`"
                )
            ],
        ),
        (
            "{mode: inbound, address: 127.0.0.1:1, target: 127.0.0.1:1}",
            [
                (
                    "1:59: target `127.0.0.1:1` is this sidecar itself, `listeners[0].address` at "
                    "1:38: calls would go round in a circle; write the address of the service"
                )
            ],
        ),
        (
            "{name: cart, mode: inbound, address: 127.0.0.1:1, target: 127.0.0.1:2}",
            [
                "1:20: listener `cart` has the name of a service, at 2:12; give one another name",
            ],
        ),
        (
            "{mode: service, address: 127.0.0.1:1}",
            ["1:13: `listeners[0]` has mode `service` but no `service`; name one"],
        ),
        (
            "{mode: service, address: 127.0.0.1:1, service: shop}",
            ["1:60: service `shop` is not in `services`; there are `cart`"],
        ),
        (
            "{mode: explicit, adress: 127.0.0.1:1}",
            ["1:30: unknown key `adress` in `listeners[0]`; did you mean `address`?"],
        ),
        ("{mode: explicit}", ["1:13: `listeners[0]` lacks the key `address`"]),
        (
            "{}",
            [
                "1:13: `listeners[0]` lacks the key `address`",
                "1:13: `listeners[0]` lacks the key `mode`",
            ],
        ),
        ("explicit", ["1:13: `listeners[0]`: found `explicit`, expected a mapping"]),
        ("", ["1:12: `listeners` is empty; write at least one entry"]),
        (
            "{mode: explicit, address: [::1]:80}",
            [
                (
                    "1:40: no valid YAML: did not find expected node content; put an "
                    "address that begins with `[` in quotes"
                )
            ],
        ),
        (
            "{mode: explicit, address: 127.0.0.1:1}, {mode: explicit, address: 127.0.0.1:1}",
            ["1:79: address `127.0.0.1:1` is taken at 1:39 already; choose another one"],
        ),
        (
            "{mode: explicit, address: 127.0.0.1:1}, {mode: explicit, address: 0.0.0.0:1}",
            ["1:79: address `0.0.0.0:1` is taken at 1:39 already; choose another one"],
        ),
        (
            "{mode: explicit, address: '[::]:1'}, {mode: explicit, address: 10.0.0.1:1}",
            ["1:76: address `10.0.0.1:1` is taken at 1:39 already; choose another one"],
        ),
        (
            "{mode: explicit, address: 127.0.0.1:15010}",
            [
                (
                    "1:39: address `127.0.0.1:15010` is taken by `admin.grpc` (default) "
                    "already; choose "
                    "another one"
                )
            ],
        ),
        (
            "{mode: explicit, address: 'unix:/a'}, {mode: explicit, address: 'unix:/a'}",
            ["1:77: address `unix:/a` is taken at 1:39 already; choose another one"],
        ),
        (
            (
                "{name: explicit-1, mode: explicit, address: 127.0.0.1:1}, "
                "{mode: explicit, address: 127.0.0.1:2}"
            ),
            ["1:71: listener `explicit-1` stands twice, first at 1:20; give one another `name`"],
        ),
    ],
)
def test_mistakes_in_listeners(listener: str, messages: list[str]) -> None:
    text = (
        f"listeners: [{listener}]\nservices: {{cart: {{endpoints: {{static: ['10.0.0.1:9']}}}}}}\n"
    )
    assert problems(text) == messages


@pytest.mark.parametrize(
    "listeners",
    [
        "{mode: explicit, address: 127.0.0.1:0}, {mode: explicit, address: 127.0.0.1:0}",
        "{mode: explicit, address: 127.0.0.1:1}, {mode: explicit, address: 127.0.0.2:1}",
        "{mode: explicit, address: 0.0.0.0:1}, {mode: explicit, address: '[::1]:1'}",
        "{mode: explicit, address: 'unix:/a'}, {mode: explicit, address: 'unix:/b'}",
    ],
)
def test_listeners_that_do_not_collide(listeners: str) -> None:
    text = f"listeners: [{listeners}]\nservices: {{cart: {{endpoints: {{static: []}}}}}}\n"
    assert problems(text) == []


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        (
            "{}",
            ["4:16: `services.cart.endpoints` names no source; write `static`, `file` or `dns`"],
        ),
        (
            "{static: [], file: a}",
            [
                (
                    "4:29: `services.cart.endpoints` has both `static`, at 4:17, and `file`; keep "
                    "one, or write a list of sources"
                )
            ],
        ),
        (
            "{static: [], refresh: 5s}",
            ["4:29: `refresh` in `services.cart.endpoints` means nothing for `static`; remove it"],
        ),
        (
            "{dns: cart}",
            [
                (
                    "4:22: `dns` in `services.cart.endpoints`: found `cart`, expected "
                    "`host:port`, or an SRV name such as `_grpc._tcp.cart.example`; a name of "
                    "addresses needs the port of the endpoints"
                )
            ],
        ),
        (
            "{dns: {name: _grpc._tcp.cart:1, on_empty: drop}}",
            [
                (
                    "4:29: `name` in `services.cart.endpoints.dns`: found `_grpc._tcp.cart:1`, "
                    "expected `host:port`, or an SRV name such as `_grpc._tcp.cart.example`; SRV "
                    "records have ports of their own, write `_grpc._tcp.cart`"
                ),
                (
                    "4:58: `on_empty` in `services.cart.endpoints.dns`: found `drop`, expected "
                    "`hold` or `empty`"
                ),
            ],
        ),
        (
            "{dns: 10.0.0.1:1, static: [127.0.0.1:15010]}",
            [
                (
                    "4:22: `dns` in `services.cart.endpoints`: found `10.0.0.1:1`, expected "
                    "`host:port`, or an SRV name such as `_grpc._tcp.cart.example`, and `10.0.0.1` "
                    "is an IP address; write `static: [10.0.0.1:1]`"
                ),
                (
                    "4:34: `services.cart.endpoints` has both `dns`, at 4:17, and `static`; keep "
                    "one, or write a list of sources"
                ),
                (
                    "4:43: endpoint `127.0.0.1:15010` is this sidecar itself, `admin.grpc` by "
                    "default: calls would go round in a circle; write the address of the service"
                ),
            ],
        ),
        (
            "[{static: [10.0.0.1:1]}, {file: a, consul: {}}, {}]",
            [
                (
                    "4:51: key `consul` in `services.cart.endpoints[1]` comes in version 0.2, "
                    f"{__version__} does not know it; until then write `static`, `file` or `dns`"
                ),
                (
                    "4:64: `services.cart.endpoints[2]` names no source; write `static`, `file` or "
                    "`dns`"
                ),
            ],
        ),
        ("[]", ["4:16: `endpoints` in `services.cart` is empty; write at least one entry"]),
        *(
            (
                f"{{{name}: {{}}}}",
                [
                    (
                        f"4:17: key `{name}` in `services.cart.endpoints` comes in version 0.2, "
                        f"{__version__} does not know it; until then write `static`, `file` or "
                        "`dns`"
                    )
                ],
            )
            for name in ("kubernetes", "xds", "consul", "eureka")
        ),
        (
            "{file: a, refresh: 10ms}",
            [
                (
                    "4:35: `refresh` in `services.cart.endpoints`: found `10ms`, "
                    "expected a duration from "
                    "`100ms` to `1h`"
                )
            ],
        ),
        (
            "{file: 7}",
            [
                (
                    "4:23: `file` in `services.cart.endpoints`: found `7`, expected the "
                    "path of a file; "
                    'put it in quotes: `"7"`'
                )
            ],
        ),
        (
            "[10.0.0.1:1]",
            ["4:17: `endpoints[0]` in `services.cart`: found `10.0.0.1:1`, expected a mapping"],
        ),
        (
            "{static: 10.0.0.1:1}",
            ["4:25: `static` in `services.cart.endpoints`: found `10.0.0.1:1`, expected a list"],
        ),
        (
            "{static: [10.0.0.1:0]}",
            [
                (
                    "4:26: `static[0]` in `services.cart.endpoints`: found `10.0.0.1:0`, "
                    "port 0 cannot be "
                    "dialled; write the endpoint's port"
                )
            ],
        ),
        (
            "{static: [10.0.0.1:1, {address: 10.0.0.1:1}]}",
            ["4:48: endpoint `10.0.0.1:1` stands twice, first at 4:26; remove one"],
        ),
        (
            "{static: [{address: 10.0.0.1:1, weight: -1}]}",
            [
                (
                    "4:56: `weight` in `services.cart.endpoints.static[0]`: found `-1`, "
                    "expected a number "
                    "from 0 to 1000000; 0 takes no new calls"
                )
            ],
        ),
        (
            "{static: [{address: 10.0.0.1:1, weight: .nan}]}",
            [
                (
                    "4:56: `weight` in `services.cart.endpoints.static[0]`: found "
                    "`.nan`, expected a number "
                    "from 0 to 1000000; 0 takes no new calls"
                )
            ],
        ),
        (
            "{static: [{address: 10.0.0.1:1, weight: 4294967296}]}",
            [
                (
                    "4:56: `weight` in `services.cart.endpoints.static[0]`: found "
                    "`4294967296`, expected a "
                    "number from 0 to 1000000; 0 takes no new calls"
                )
            ],
        ),
        (
            "{static: [{address: 10.0.0.1:1, weight: true}]}",
            [
                (
                    "4:56: `weight` in `services.cart.endpoints.static[0]`: found "
                    "`true`, expected a number "
                    "from 0 to 1000000; 0 takes no new calls"
                )
            ],
        ),
        (
            "{static: [{address: 10.0.0.1:1, labels: {a: 1}}]}",
            [
                (
                    "4:60: `a` in `services.cart.endpoints.static[0].labels`: found `1`, "
                    "expected text; "
                    'put it in quotes: `"1"`'
                )
            ],
        ),
    ],
)
def test_mistakes_in_a_source_of_endpoints(source: str, messages: list[str]) -> None:
    text = (
        "listeners: [{mode: explicit, address: 127.0.0.1:1}]\n"
        "services:\n"
        "  cart:\n"
        f"    endpoints: {source}\n"
    )
    assert problems(text) == messages


def test_weights_zero_and_unset_are_fine() -> None:
    """LB-06, as far as the policy has a say: which call fails is the balancer's."""
    endpoints = "{static: [{address: 10.0.0.1:1, weight: 0}, {address: 10.0.0.2:1, weight: 0.0}]}"
    assert problems(MINIMAL + f"  other: {{endpoints: {endpoints}}}\n") == []


def test_more_endpoints_than_the_limit() -> None:
    text = MINIMAL + "    limits: {max_endpoints: 1}\n"
    assert problems(text) == [
        "5:25: 2 endpoints, but `limits.max_endpoints` is 1; raise it",
    ]


def test_an_authority_owned_twice_names_both_places() -> None:
    listed = MINIMAL + "  shop: {authorities: [shop, Checkout], endpoints: {static: []}}\n"
    assert problems(listed) == [
        (
            "6:30: authority `checkout` of service `shop` belongs to service `checkout` "
            "already, at "
            "4:3; remove one"
        ),
    ]
    upper = MINIMAL + "  CHECKOUT: {endpoints: {static: []}}\n"
    assert problems(upper) == [
        (
            "6:3: authority `checkout:*` of service `CHECKOUT` belongs to service "
            "`checkout` already, "
            "at 4:3; remove one"
        ),
        (
            "6:3: authority `checkout` of service `CHECKOUT` belongs to service "
            "`checkout` already, at "
            "4:3; remove one"
        ),
    ]


def test_every_mistake_of_a_file_is_listed_at_once_and_in_order() -> None:
    text = """\
admin: {htpp: 127.0.0.1:1}
listeners:
  - {mode: explicit, address: 8080}
  - {mode: service, address: 127.0.0.1:2, service: shop}
timeouts: {handshake: 400}
services:
  cart:
    endpoints: {static: [10.0.0.1:1, 10.0.0.1:1]}
    limits: {max_inflight: -1}
  cart: {}
  wish list: {endpoints: {static: []}}
"""
    assert problems(text) == [
        "1:9: unknown key `htpp` in `admin`; did you mean `http`?",
        (
            "3:31: `address` in `listeners[0]`: found `8080`, expected an address such as "
            "`127.0.0.1:50051` or `unix:/path`"
        ),
        "4:52: service `shop` is not in `services`; there are `cart`, `wish list`",
        (
            "5:23: `handshake` in `timeouts`: found `400`, a duration needs a unit; "
            "write `400ms` or "
            "`400s`"
        ),
        "8:38: endpoint `10.0.0.1:1` stands twice, first at 8:26; remove one",
        "9:28: `max_inflight` in `services.cart.limits`: found `-1`, expected at least 1",
        "10:3: key `cart` stands twice, first at 7:3; remove one",
        (
            "11:3: key `wish list` in `services`: expected a name of at most 253 "
            "letters, digits, `.`, "
            "`_` and `-` that begins and ends with a letter or digit"
        ),
    ]


def test_a_flood_of_problems_is_cut_with_a_word() -> None:
    text = MINIMAL + "".join(f"k{number:04}: 1\n" for number in range(500))
    found = problems(text)
    assert len(found) == 201
    assert found[-1].startswith("206:1: and 300 more problems from here on")


@pytest.mark.parametrize(
    ("listener", "endpoint", "refused"),
    [
        ("127.0.0.1:7", "127.0.0.1:7", True),
        ("0.0.0.0:7", "127.0.0.1:7", True),
        ("'[::]:7'", "'[::1]:7'", True),
        ("'unix:/run/in.sock'", "'unix:/run/in.sock'", True),
        # Perhaps of another machine: the sidecar knows once it runs.
        ("0.0.0.0:7", "10.0.0.1:7", False),
        ("127.0.0.1:7", "127.0.0.1:8", False),
        ("127.0.0.1:7", "127.0.0.2:7", False),
        ("127.0.0.1:0", "127.0.0.1:7", False),
    ],
)
def test_a_sidecar_is_no_endpoint_of_its_own(listener: str, endpoint: str, refused: object) -> None:
    text = (
        f"listeners: [{{mode: explicit, address: {listener}}}]\n"
        f"services: {{cart: {{endpoints: [{{file: a}}, {{static: [{endpoint}]}}]}}}}\n"
    )
    found = problems(text)
    assert bool(found) is refused
    assert all("is this sidecar itself, `listeners[0].address` at 1:39" in each for each in found)
