"""The interop suite of gRPC: its own clients and servers in Go and Java, a sidecar between them.

Every case that needs no credentials of a cloud, first without a sidecar, then in each listener
mode. `pick_first_unary` and the compressed cases are Java's alone: the server in Go does not
implement them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

import pytest
from tests.conformance.peers import SERVICE, TARGET, Command, told_a_proxy
from tests.support.sidecar import ADMIN, ANY_PORT, Sidecar

pytestmark = pytest.mark.timeout(1_800)

ORCA_CASES = ("orca_per_rpc", "orca_oob")
"""Not in front of a server: there the report has more in it, and they want it to the letter."""

CASES = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
    *ORCA_CASES,
)
JAVA_CASES = (
    "pick_first_unary",
    "client_compressed_unary_noprobe",
    "server_compressed_unary",
    "client_compressed_streaming_noprobe",
    "server_compressed_streaming",
)
SOAKS = ("rpc_soak", "channel_soak")
SOAK = (
    "--soak_iterations=1000",
    "--soak_num_threads=4",
    "--soak_overall_timeout_seconds=300",
    "--soak_per_iteration_max_acceptable_latency_ms=30000",
)
_BALANCER = '{"loadBalancingConfig":[{"test_backend_metrics_load_balancer":{}}]}'
ORCA = (f"--service_config_json={_BALANCER}",)

Start = Callable[..., Sidecar]


def _policy(endpoint: str) -> str:
    return (
        f"{ADMIN}"
        "drain: {linger: 1s, limit: 3s}\n"
        "listeners:\n"
        f"  - {{name: explicit, mode: explicit, address: {ANY_PORT}}}\n"
        f"  - {{name: service, mode: service, address: {ANY_PORT}, service: {SERVICE}}}\n"
        f"  - {{name: connect, mode: connect, address: {ANY_PORT}}}\n"
        f"  - {{name: inbound, mode: inbound, address: {ANY_PORT}, target: '{endpoint}'}}\n"
        "services:\n"
        f'  {SERVICE}: {{authorities: ["*"], endpoints: {{static: ["{endpoint}"]}}}}\n'
    )


def _failure(client: Command, address: str, case: str, *, proxy: str | None = None) -> str:
    """Runs one case, through a proxy if there is one; empty if it passed."""
    host, _, port = address.rpartition(":")
    where = (f"--server_host={host}", f"--server_port={port}", f"--test_case={case}")
    extra = SOAK if case in SOAKS else ORCA if case in ORCA_CASES else ()
    command = [*client, "--use_tls=false", *where, *extra]
    environment = None if proxy is None else told_a_proxy(proxy)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return "" if done.returncode == 0 else f"{case}: {done.stdout[-2000:]} {done.stderr[-2000:]}"


def _run(client: Command, endpoint: str, start_sidecar: Start, cases: Sequence[str]) -> None:
    direct = [failure for case in cases if (failure := _failure(client, endpoint, case))]
    assert not direct, "the peers do not agree with each other"
    sidecar = start_sidecar(_policy(endpoint))
    for mode in ("explicit", "service", "connect", "inbound"):
        address, proxy = sidecar.listeners[mode], None
        if mode == "connect":
            # A name that nobody resolves: only the sidecar can lead there.
            address, proxy = TARGET, address
        run = [case for case in cases if mode != "inbound" or case not in ORCA_CASES]
        failures = [
            failure for case in run if (failure := _failure(client, address, case, proxy=proxy))
        ]
        assert not failures, f"{mode}: {failures}\n{sidecar.stderr}"
    assert sidecar.metric("attnroute_listener_tunnels_total", content="http2") >= 1
    sidecar.until(lambda: sidecar.metric("attnroute_endpoint_inflight") == 0, "no call in flight")
    assert sidecar.stop() == 0


def test_go_client_to_go_endpoint(
    interop_go_client: Command, interop_go_endpoint: str, start_sidecar: Start
) -> None:
    _run(interop_go_client, interop_go_endpoint, start_sidecar, CASES)


def test_soaks_of_a_go_client(
    interop_go_client: Command, interop_go_endpoint: str, start_sidecar: Start
) -> None:
    _run(interop_go_client, interop_go_endpoint, start_sidecar, SOAKS)


def test_java_client_to_java_endpoint(
    interop_java_client: Command, interop_java_endpoint: str, start_sidecar: Start
) -> None:
    _run(interop_java_client, interop_java_endpoint, start_sidecar, (*CASES, *JAVA_CASES))


def test_java_client_to_go_endpoint(
    interop_java_client: Command, interop_go_endpoint: str, start_sidecar: Start
) -> None:
    _run(interop_java_client, interop_go_endpoint, start_sidecar, CASES)


def test_go_client_to_java_endpoint(
    interop_go_client: Command, interop_java_endpoint: str, start_sidecar: Start
) -> None:
    _run(interop_go_client, interop_java_endpoint, start_sidecar, CASES)
