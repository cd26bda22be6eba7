"""CF-06: nothing half-written, empty or deleted ever counts; the last good one stays, visibly."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

from tests.support.files import POLL_OFTEN_S, collecting, write
from tests.support.policies import MINIMAL, loaded
from tests.support.sidecar import ADMIN, ANY_PORT, Sidecar
from tests.support.wait import until

from attnroute.admin.client import AdminClient
from attnroute.discovery.base import EndpointSet
from attnroute.discovery.file import FileResolver
from attnroute.policy.load import parse_endpoints
from attnroute.policy.watch import FileWatcher, watch_policy

PAUSE_S = 0.05
ROUNDS = 40
REPEATS = 20
# What an endpoint file holds, one after the other; None: it is deleted.
SPOILED = [
    b"",
    b"# nothing here yet\n",
    b"endpoints:\n",
    b"endpoints: [127.0.0.1:9\n",
    b"\x1f\x8b\x08\x00",
    None,
]


class RestlessWriter:
    """Truncates, waits, writes half, waits, writes the rest, in a loop. Each version comes
    many times, so that the same half can be seen twice, and the half is a valid file of its own."""

    def __init__(self, path: Path, versions: list[bytes]) -> None:
        self._path = path
        self._versions = versions
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        pause = threading.Event()  # never set: waiting for it is the pause of the case
        for version in self._versions:
            half = version.index(b"\n", len(version) // 2) + 1
            with self._path.open("wb", buffering=0) as file:
                pause.wait(PAUSE_S)
                file.write(version[:half])
                pause.wait(PAUSE_S)
                file.write(version[half:])


async def test_cf_06_endpoints_of_a_restless_writer(tmp_path: Path) -> None:
    def version(number: int) -> bytes:
        rows = "".join(f"- 10.0.{number}.{host}:1\n" for host in range(10))
        return f"endpoints:\n{rows}".encode()

    path = tmp_path / "endpoints.yaml"
    versions = [version(number // REPEATS) for number in range(ROUNDS)]
    write(path, versions[0])
    whole = [EndpointSet(parse_endpoints(each, path)) for each in versions]
    resolver = FileResolver(
        path, refresh_s=POLL_OFTEN_S, follow=FileWatcher().follow, parse=parse_endpoints
    )
    async with collecting(resolver.watch()) as seen:
        await seen.wait_for(whole[0])
        writer = RestlessWriter(path, versions)
        writer.thread.start()
        await until(lambda: not writer.thread.is_alive(), "the writer to end")
        await seen.wait_for(whole[-1])
        assert all(answer in whole for answer in seen.items)


async def test_cf_06_policy_of_a_restless_writer(tmp_path: Path) -> None:
    def version(number: int) -> bytes:
        extra = f"  cart-{number}: {{endpoints: {{static: []}}}}\n"
        return (MINIMAL + "# filler\n" * 20 + extra).encode()

    path = tmp_path / "policy.yaml"
    versions = [version(number // REPEATS) for number in range(ROUNDS)]
    for each in versions:
        loaded(each)
    write(path, versions[0])
    known = hashlib.sha256(versions[0]).hexdigest()
    watching = watch_policy(path, poll_interval_s=POLL_OFTEN_S, known_sha256=known)
    async with collecting(watching) as seen:
        writer = RestlessWriter(path, versions)
        writer.thread.start()
        await until(lambda: not writer.thread.is_alive(), "the writer to end")
        await seen.wait_for(versions[-1])
        assert all(content in versions for content in seen.items)


def test_cf_06_in_a_sidecar_the_last_good_set_stays_and_an_alarm_shows(
    start_sidecar: Callable[..., Sidecar], tmp_path: Path
) -> None:
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text("endpoints: [127.0.0.1:9, 127.0.0.1:7]\n")
    sidecar = start_sidecar(
        f"{ADMIN}listeners: [{{mode: explicit, address: {ANY_PORT}}}]\n"
        f"services: {{cart: {{endpoints: {{file: {endpoints}, refresh: 100ms}}}}}}\n"
    )

    def addresses() -> list[str]:
        with AdminClient(sidecar.admin) as client:
            return sorted(each.address for each in client.list_endpoints("cart").endpoints)

    def stale() -> float:
        return sidecar.metric("attnroute_discovery_stale", service="cart")

    def failed(times: int) -> bool:
        labels = {"service": "cart", "source": "file"}
        return sidecar.metric("attnroute_discovery_errors_total", **labels) == times

    good = ["127.0.0.1:7", "127.0.0.1:9"]
    assert (addresses(), stale()) == (good, 0)
    for count, spoiled in enumerate(SPOILED, start=1):
        if spoiled is None:
            endpoints.unlink()
        else:
            endpoints.write_bytes(spoiled)
        sidecar.until(functools.partial(failed, count), f"failure {count}, {spoiled!r}")
        assert (addresses(), stale()) == (good, 1)
        assert sidecar.get("/readyz").status == 200
    sidecar.replace(endpoints, "endpoints: [127.0.0.1:9]\n")
    sidecar.until(lambda: stale() == 0, "the end of the alarm")
    assert addresses() == ["127.0.0.1:9"]
    sidecar.replace(endpoints, "endpoints: []\n")
    sidecar.until(lambda: addresses() == [], "the explicit empty set")
    assert stale() == 0
