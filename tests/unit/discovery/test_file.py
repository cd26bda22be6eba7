"""Endpoints in a file: answers and failures, with a scripted and with the real follower."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

from tests.support.files import POLL_OFTEN_S, collecting, remove, replace, write

from attnroute.discovery.base import EndpointSet, EndpointSpec, Resolved, ResolveFailure, Resolver
from attnroute.discovery.file import BYTES_MAX, FileResolver
from attnroute.policy.load import ENDPOINT_FILE_LIMITS, parse_endpoints
from attnroute.policy.watch import FileWatcher
from attnroute.types import FileContent, FileUnreadable

PATH = Path("endpoints.yaml")
ONE = EndpointSet((EndpointSpec("10.0.0.1:1"),))
TWO = EndpointSet((EndpointSpec("10.0.0.1:1"), EndpointSpec("10.0.0.2:1")))


class Script:
    """Follows nothing: shows what it was told, and ends."""

    def __init__(self, *looks: FileContent | FileUnreadable) -> None:
        self.looks = looks
        self.asked: list[tuple[Path, float, int]] = []
        self.closed = False

    async def __call__(
        self, path: Path, *, poll_interval_s: float, bytes_max: int
    ) -> AsyncGenerator[FileContent | FileUnreadable, None]:
        self.asked.append((path, poll_interval_s, bytes_max))
        try:
            for look in self.looks:
                yield look
        finally:
            self.closed = True


async def answers(*looks: FileContent | FileUnreadable) -> list[Resolved]:
    resolver = FileResolver(PATH, refresh_s=5.0, follow=Script(*looks), parse=parse_endpoints)
    return [answer async for answer in resolver.watch()]


async def test_each_look_becomes_an_answer_or_a_failure() -> None:
    assert await answers(
        FileContent(b"endpoints: [10.0.0.1:1]\n"),
        FileUnreadable("cannot be read: No such file or directory"),
        FileContent(b"endpoints: []\n"),
        FileContent(b""),
        FileContent(b"endpoints: [10.0.0.1:1, 10.0.0.2:1]\n"),
    ) == [
        ONE,
        ResolveFailure("endpoint file `endpoints.yaml` cannot be read: No such file or directory"),
        EndpointSet(()),
        ResolveFailure("endpoints.yaml:1:1: the file is empty or has only comments"),
        TWO,
    ]


async def test_a_failure_names_the_first_problem_and_counts_the_rest() -> None:
    (failure,) = await answers(FileContent(b"endpoints: [a:1, b:1, 10.0.0.1:0]\n"))
    assert isinstance(failure, ResolveFailure)
    assert failure.reason.startswith("endpoints.yaml:1:13: `endpoints[0]`: found `a:1`, expected")
    assert failure.reason.endswith(" (and 2 more)")


async def test_the_follower_is_asked_with_the_policys_refresh_and_closed_at_the_end() -> None:
    script = Script(FileContent(b"endpoints: []\n"), FileContent(b"endpoints: []\n"))
    resolver = FileResolver(PATH, refresh_s=7.5, follow=script, parse=parse_endpoints)
    watching = resolver.watch()
    async for _ in watching:
        break
    assert isinstance(watching, AsyncGenerator)
    await watching.aclose()
    assert script.asked == [(PATH, 7.5, BYTES_MAX)]
    assert script.closed


def test_it_reads_as_much_as_the_parser_takes() -> None:
    assert ENDPOINT_FILE_LIMITS.bytes_max == BYTES_MAX


async def test_a_real_file_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    resolver: Resolver = FileResolver(
        path, refresh_s=POLL_OFTEN_S, follow=FileWatcher().follow, parse=parse_endpoints
    )
    assert resolver.name == "file"
    async with collecting(resolver.watch()) as seen:
        await seen.wait_for(
            ResolveFailure(f"endpoint file `{path}` cannot be read: No such file or directory")
        )
        write(path, b'{"endpoints": ["10.0.0.1:1"]}')
        await seen.wait_for(ONE)
        write(path, b"\x80\x81 binary")
        await seen.wait_for(
            ResolveFailure(f"{path}:1:1: byte `0x80` is no UTF-8; save the file as UTF-8 text")
        )
        replace(path, '{"endpoints": ["10.0.0.1:1", "10.0.0.2:1"]}')
        await seen.wait_for(TWO)
        remove(path)
        await seen.wait_count(5)
        write(path, b'{"endpoints": []}')
        await seen.wait_for(EndpointSet(()))
        assert len(seen.items) == 6
