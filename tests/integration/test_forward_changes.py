"""Calls in flight and calls that begin are untouched by reloads and changes of endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import time
from collections.abc import AsyncIterator

import pytest
from tests.support.dataplane import DataPlaneHarness, data_plane
from tests.support.grpc_peers import GrpcClient, grpc_client, grpc_peer
from tests.support.raw_h2 import RawStream, grpc_message
from tests.support.raw_peers import (
    RESPONSE,
    answer,
    open_call,
    raw_client,
    raw_server,
    trailers,
)
from tests.support.wait import patience_s, until

from attnroute.dataplane import BindError, ConfigError


class _Load:
    """Unary calls and streams without a pause; every failure is kept."""

    def __init__(self, client: GrpcClient) -> None:
        self._client = client
        self._stop = asyncio.Event()
        self.calls = 0

    async def unary(self) -> None:
        while not self._stop.is_set():
            assert await self._client.unary()(b"x" * 100) == b"x" * 100
            self.calls += 1

    async def bidi(self) -> None:
        call = self._client.bidi()()
        while not self._stop.is_set():
            await call.write(b"ping")
            assert await call.read() == b"ping"
            await asyncio.sleep(0.01)
        await call.done_writing()
        assert await call.read() == b"end"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.unary()) for _ in range(6)]
        tasks += [asyncio.create_task(self.bidi()) for _ in range(6)]
        yield
        self._stop.set()
        await asyncio.gather(*tasks)

    async def some_calls(self, count: int = 30) -> None:
        """Waits until that many more calls ended well."""
        goal = self.calls + count
        await until(lambda: self.calls >= goal, f"{count} more calls")


def _broken_policies(config: dict[str, object]) -> list[bytes]:
    wrong_key = copy.deepcopy(config)
    wrong_key["no_such_key"] = 1
    threads = copy.deepcopy(config) | {"threads": 7}
    no_listener = copy.deepcopy(config) | {"listeners": []}
    return [b"", b"{", *(json.dumps(c).encode() for c in (wrong_key, threads, no_listener))]


async def test_no_call_fails_during_changes_of_any_kind() -> None:
    async with (
        grpc_peer() as a,
        grpc_peer() as b,
        grpc_peer() as c,
        data_plane([a.address, b.address]) as plane,
        grpc_client(plane.address) as client,
    ):
        load = _Load(client)
        async with load.running():
            await load.some_calls()
            for turn in range(10):
                plane.config["services"][0]["balancer"] = (
                    {"type": "round_robin"} if turn % 2 else {"type": "least_request"}
                )
                plane.config["limits"]["max_streams_per_connection"] = 1000 + turn
                plane.apply()
                for broken in _broken_policies(plane.config):
                    with pytest.raises(ConfigError):
                        plane.plane.apply_policy(broken)
                sets = [[a.address], [b.address, c.address], [c.address, a.address, b.address]]
                plane.apply_endpoints(sets[turn % 3])
                await load.some_calls()
        statuses = plane.statuses()
        assert set(statuses) == {"OK"}, statuses
        assert min(peer.started for peer in (a, b, c)) > 0


async def test_removed_endpoints_finish_their_calls() -> None:
    finish = asyncio.Event()

    async def held(stream: RawStream) -> None:
        stream.headers(RESPONSE)
        await finish.wait()
        await stream.write(grpc_message(b"done"))
        stream.headers(trailers(0), end_stream=True)

    async with (
        raw_server(held) as old,
        raw_server(answer()) as new,
        data_plane([old.address]) as plane,
        raw_client(plane.address) as client,
    ):
        stream = open_call(client)
        await stream.until_headers()
        plane.apply_endpoints([new.address])
        assert (await open_call(client).until_done()).grpc_status == 0
        plane.apply_endpoints([])
        refused = await open_call(client).until_done()
        assert refused.grpc_status == 14
        assert "endpoint set is empty" in refused.grpc_message
        finish.set()
        await stream.until_done()
        assert (stream.grpc_status, stream.data) == (0, grpc_message(b"done"))
        for server in (old, new):
            await server.connections[0].until_gone()


async def test_services_and_listeners_come_and_go() -> None:
    extra = {"name": "second", "mode": "service", "service": "late", "address": "127.0.0.1:0"}
    async with (
        raw_server(answer(b"late")) as late,
        raw_server(answer()) as first,
        data_plane([first.address]) as plane,
        raw_client(plane.address) as client,
    ):
        before = plane.plane.bound()
        plane.config["services"].append({"name": "late", "authorities": ["late"]})
        plane.config["listeners"].append(extra)
        plane.apply()
        assert "endpoints of late" in plane.plane.pending()
        plane.apply_endpoints([late.address], "late")
        assert not plane.plane.pending()
        bound = plane.plane.bound()
        assert bound["explicit-0"] == before["explicit-0"]
        async with raw_client(bound["second"]) as second:
            assert (await open_call(second).until_done()).data == grpc_message(b"late")
        assert (await open_call(client, authority="late").until_done()).grpc_status == 0
        del plane.config["services"][1], plane.config["listeners"][1]
        plane.apply()
        assert plane.plane.bound() == before
        await _until_refused(bound["second"])
        assert (await open_call(client).until_done()).grpc_status == 0


async def test_a_reload_that_cannot_bind_changes_nothing() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        good = copy.deepcopy(plane.config)
        plane.config["services"][0]["authorities"] = ["renamed"]
        plane.config["listeners"].append(
            {
                "name": "taken",
                "mode": "explicit",
                "address": endpoint.address,
                "source": "policy.yaml:9:5",
            }
        )
        with pytest.raises(BindError) as failure:
            plane.apply()
        assert failure.value.args[:3] == ("taken", endpoint.address, "policy.yaml:9:5")
        assert (await open_call(client, authority="test").until_done()).grpc_status == 0
        assert list(plane.plane.bound()) == ["explicit-0"]
        plane.config = good


async def test_endpoint_sets_that_are_none_change_nothing() -> None:
    async with (
        raw_server(answer()) as endpoint,
        data_plane([endpoint.address]) as plane,
        raw_client(plane.address) as client,
    ):
        epoch = plane.plane.endpoints("test")[0]
        for bad in (b"", b"{}", b'{"endpoints": ["x"]}', b'{"endpoints": [{"address": "h:1"}]}'):
            with pytest.raises(ConfigError):
                plane.plane.apply_endpoints("test", bad)
        twice = [endpoint.address, endpoint.address]
        with pytest.raises(ConfigError, match="stands twice"):
            plane.apply_endpoints(twice)
        assert plane.apply_endpoints([endpoint.address]) == epoch, "an equal set is no change"
        assert (await open_call(client).until_done()).grpc_status == 0


async def test_limits_of_a_reload_hold_for_new_connections() -> None:
    async with raw_server(answer()) as endpoint, data_plane([endpoint.address]) as plane:
        await _announced(plane, 1000)
        plane.config["limits"]["max_streams_per_connection"] = 7
        plane.apply()
        await _announced(plane, 7)


async def _announced(plane: DataPlaneHarness, streams: int) -> None:
    async with raw_client(plane.address) as client:
        await client.until(lambda: client.peer_settings, "SETTINGS")
        assert client.peer_settings[3] == streams


async def _until_refused(address: str) -> None:
    """A listener that left is unbound by its data threads, soon after the reload returned."""
    end_s = time.monotonic() + patience_s()
    while not await _refused(address):
        assert time.monotonic() < end_s, f"{address} is still served"


async def _refused(address: str) -> bool:
    try:
        _, writer = await asyncio.open_connection(*address.split(":"))
    except ConnectionRefusedError:
        return True
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return False
