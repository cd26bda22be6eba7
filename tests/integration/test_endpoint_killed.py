"""kill -9 of an endpoint, a real process, with calls in flight through a real sidecar."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc
from tests.support.echo_endpoint import ECHO, killable_endpoint
from tests.support.grpc_peers import grpc_client
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.wait import patiently, until

CALLS = 100

NO_OTHER_END = "    connection: {keepalive: {interval: 0}}\n"
"""The calls have no deadline, and nobody asks whether the endpoint is there: all that can end them
is that the loss of its connection is passed on."""


async def test_every_call_at_an_endpoint_that_is_killed_has_a_final_status(
    start_sidecar: Callable[..., Sidecar], record_property: Callable[[str, object], None]
) -> None:
    with killable_endpoint(*ECHO) as (address, process), killable_endpoint(*ECHO) as (other, _):
        sidecar = start_sidecar(minimal_policy(address, extra=NO_OTHER_END))

        def ended(status: str) -> float:
            return sidecar.metric("attnroute_requests_total", grpc_status=status)

        async with grpc_client(sidecar.address, authority="cart") as client:
            unary = [client.unary("Block")(b"write") for _ in range(CALLS // 2)]
            streams = [client.server_stream("BlockStream")(b"1") for _ in range(CALLS // 2)]
            for stream in streams:
                assert await patiently(stream.read(), "the first message") == b"0"
            await until(lambda: _held(sidecar) == CALLS, "every call at the endpoint")
            sidecar.write_policy(minimal_policy(address, other, extra=NO_OTHER_END))
            sidecar.until(lambda: sidecar.metric("attnroute_policy_generation") == 2, "a reload")
            process.kill()
            killed_s = time.monotonic()
            codes = [await patiently(call.code(), "a status") for call in (*unary, *streams)]
            took_s = time.monotonic() - killed_s
            assert codes == [grpc.StatusCode.UNAVAILABLE] * CALLS
            for call in (*unary, *streams):
                assert "was lost" in (await call.details() or "")
            # What may have been processed was not tried at the other one.
            await until(lambda: ended("UNAVAILABLE") == CALLS, "their count")
            assert (ended("OK"), _held(sidecar)) == (0, 0)
            # Who calls now is served at once by who is there.
            answers = [client.unary()(str(n).encode()) for n in range(20)]
            assert await asyncio.gather(*answers) == [str(n).encode() for n in range(20)]
        assert sidecar.metric("attnroute_requests_total") == CALLS + 20
    # Shown in reports (`--junitxml`); no clock decides whether the test passes.
    record_property("last_status_after_kill_s", round(took_s, 3))
    print(f"last of {CALLS} statuses {took_s:.3f} s after kill -9")


def _held(sidecar: Sidecar) -> float:
    return sidecar.metric("attnroute_endpoint_inflight")
