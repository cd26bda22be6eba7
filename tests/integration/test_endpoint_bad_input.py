"""Files of endpoints that no program should write, and labels that no person should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.dataplane import data_plane
from tests.support.files import POLL_OFTEN_S, collecting, replace, write
from tests.support.raw_peers import answer, open_call, raw_client, raw_server
from tests.support.wait import until

from attnroute.discovery.base import EndpointSet, EndpointSpec, ResolveFailure, encode_endpoints
from attnroute.discovery.file import FileResolver
from attnroute.errors import EndpointFileError
from attnroute.policy.load import parse_endpoints
from attnroute.policy.watch import FileWatcher

GOOD = b"endpoints: [10.0.0.1:1]\n"
HUNDRED_MB = 100 * 10**6


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUNDRED_MB)


def _long(path: Path) -> None:
    line = b"  - 10.0.0.1:1\n" * 65_536
    with path.open("wb") as file:
        file.write(b"endpoints:\n")
        for _ in range(HUNDRED_MB // len(line) + 1):
            file.write(line)


def _binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 64)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [(_sparse, "16777216 bytes"), (_long, "16777216 bytes"), (_binary, "UTF-8")],
    ids=["100 MB of nothing", "100 MB of endpoints", "binary"],
)
async def test_a_spoiled_file_is_a_failure_and_the_next_good_one_counts(
    tmp_path: Path, spoil: object, says: str
) -> None:
    path = tmp_path / "endpoints.yaml"
    write(path, GOOD)
    resolver = FileResolver(
        path, refresh_s=POLL_OFTEN_S, follow=FileWatcher().follow, parse=parse_endpoints
    )
    async with collecting(resolver.watch()) as seen:
        await seen.wait_for(EndpointSet((EndpointSpec("10.0.0.1:1"),)))
        assert callable(spoil)
        spoil(tmp_path / "spoiled")
        (tmp_path / "spoiled").replace(path)
        await until(lambda: isinstance(seen.last, ResolveFailure), "the failure")
        failure = seen.last
        assert isinstance(failure, ResolveFailure)
        assert says in failure.reason
        assert len(failure.reason) < 1_000
        replace(path, b"endpoints: [10.0.0.2:1]\n")
        await seen.wait_for(EndpointSet((EndpointSpec("10.0.0.2:1"),)))


ODD = {
    "": "empty name",
    "a b": "c=d,e",
    'quo"te': "back\\slash",
    "snow\u2603": "\U0001f600",
    "__name__": "{}",
    "x" * 1000: "y" * 1024,
}


async def test_odd_labels_reach_the_data_plane_and_come_back_whole() -> None:
    endpoints = [{"address": "127.0.0.1:9", "labels": ODD}]
    text = json.dumps({"endpoints": endpoints}, ensure_ascii=False)
    (spec,) = parse_endpoints(text.encode(), Path("endpoints.json"))
    assert spec.labels == ODD
    async with (
        raw_server(answer()) as server,
        data_plane([server.address]) as plane,
        raw_client(plane.address) as client,
    ):
        endpoint = EndpointSpec(server.address, 1.0, "zone \u2603", ODD)
        plane.plane.apply_endpoints("test", encode_endpoints(EndpointSet((endpoint,))))
        _, listed = plane.plane.endpoints("test")
        (entry,) = json.loads(listed)
        assert (entry["labels"], entry["zone"]) == (ODD, "zone \u2603")
        assert (await open_call(client).until_done()).grpc_status == 0
        plane.metrics()  # parsed by the official parser


@pytest.mark.parametrize("label", ["line\nbreak", "\x00", "\u202e", "x" * 1025])
def test_labels_that_would_hide_something_are_refused(label: str) -> None:
    for labels in ({label: "a"}, {"a": label}):
        text = json.dumps({"endpoints": [{"address": "127.0.0.1:9", "labels": labels}]})
        with pytest.raises(EndpointFileError):
            parse_endpoints(text.encode(), Path("endpoints.json"))
