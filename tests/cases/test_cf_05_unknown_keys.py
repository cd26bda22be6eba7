"""CF-05: an unknown key is an error with the nearest known one; at reload the old policy stays."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.policies import problems, with_service, with_top
from tests.support.sidecar import Sidecar, minimal_policy

from attnroute import __version__
from attnroute.admin.client import AdminClient

DEAD = "127.0.0.1:9"


def test_cf_05_misspelled_key() -> None:
    assert problems(with_service("outlier_detecton: {}")) == [
        "4:9: unknown key `outlier_detecton` in `services.cart`; did you mean `outlier_detection`?"
    ]
    assert problems(with_service("balancr: {type: round_robin}")) == [
        "4:9: unknown key `balancr` in `services.cart`; did you mean `balancer`?"
    ]


def test_cf_05_right_key_at_the_wrong_level() -> None:
    assert problems(with_service("timeout: 2s")) == [
        "4:9: unknown key `timeout` in `services.cart`; it belongs into `services.<name>.routes[]`"
    ]
    assert problems(with_top("max_inflight: 7\n")) == [
        (
            "6:1: unknown key `max_inflight` at the top of the file; it belongs into "
            "`services.<name>.limits`"
        )
    ]


def test_cf_05_unknown_value_of_a_choice() -> None:
    (problem,) = problems(with_service("balancer: {type: least_requests}"))
    assert problem.endswith("did you mean `least_request`?")


def test_cf_05_file_of_a_newer_version() -> None:
    found = problems(
        with_service("endpoints: {xds: {}}").replace("endpoints: {static: [10.0.0.1:1]},", "")
    )
    (problem,) = [each for each in found if "`xds`" in each]
    assert problem.startswith("4:21: key `xds` in `services.cart.endpoints` comes in version 0.2, ")
    assert f"{__version__} does not know it; until then write `static`" in problem


def test_cf_05_only_keys_of_ones_own_are_free() -> None:
    assert problems(with_service("x-team: {on: [anything]}") + "x-note: 1\n") == []
    (problem,) = problems(with_service("X-team: 1"))
    assert problem.startswith("4:9: unknown key `X-team`")


def test_cf_05_at_reload_the_old_policy_stays(start_sidecar: Callable[..., Sidecar]) -> None:
    sidecar = start_sidecar(minimal_policy(DEAD))
    sidecar.write_policy(minimal_policy(DEAD, extra="    outlier_detecton: {}\n"))
    sidecar.until(lambda: sidecar.metric("attnroute_policy_rejected") == 1, "the rejection")
    with AdminClient(sidecar.admin) as client:
        config = client.get_config()
    assert config.generation == 1
    assert "did you mean `outlier_detection`" in config.rejected
    assert config.rejected.startswith(f"{sidecar.policy_path}:8:5: ")
    assert sidecar.metric("attnroute_policy_reloads_total", result="rejected") == 1
