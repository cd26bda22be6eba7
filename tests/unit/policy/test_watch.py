"""Files are followed by directory and content, with events and without."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import shutil
import threading
from pathlib import Path

import pytest
from tests.support.files import (
    POLL_NEVER_S,
    POLL_OFTEN_S,
    MountedFile,
    collecting,
    make_directory,
    remove,
    replace,
    touch_later,
    write,
)
from tests.support.wait import until

from attnroute.policy.watch import SETTLE_S, FileWatcher, watch_policy
from attnroute.types import FileContent, FileUnreadable

A, B = b"first: 1\n", b"second: 2\n"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def watch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "attnroute-watch"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    write(file, A)
    return file


@pytest.fixture(params=["events", "poll"])
def poll_interval_s(request: pytest.FixtureRequest) -> float:
    """Each way alone must be enough, but the poll has to find what events cannot tell."""
    return POLL_NEVER_S if request.param == "events" else POLL_OFTEN_S


async def test_a_change_is_seen(path: Path, poll_interval_s: float) -> None:
    watching = watch_policy(path, poll_interval_s=poll_interval_s, known_sha256=sha256(A))
    async with collecting(watching) as seen:
        await until(watch_threads, "the watching thread")
        write(path, B)
        await seen.wait_for(B)
        replace(path, A)
        await seen.wait_for(A)
        assert seen.items == [B, A]


async def test_a_change_before_the_first_look_is_seen_if_one_says_what_is_known(
    path: Path,
) -> None:
    known = sha256(A)
    write(path, B)
    async with collecting(watch_policy(path, known_sha256=known)) as seen:
        await seen.wait_for(B)


async def test_first_look_only_sets_the_mark_otherwise(path: Path) -> None:
    async with collecting(watch_policy(path, poll_interval_s=POLL_OFTEN_S)) as seen:
        # When the first looks are over cannot be seen from outside, so change the file, leaving
        # it at rest for longer than two looks, until a change is reported.
        for number in itertools.count():
            write(path, b"n: %d\n" % number)
            with contextlib.suppress(AssertionError):
                await until(lambda: seen.items, "a report", timeout_s=4 * SETTLE_S)
                break
        assert A not in seen.items


async def test_new_times_with_old_content_are_no_change(path: Path) -> None:
    watching = watch_policy(path, poll_interval_s=POLL_OFTEN_S, known_sha256=sha256(A))
    async with collecting(watching) as seen:
        touch_later(path)
        replace(path, A)
        replace(path, B)
        await seen.wait_for(B)
        assert seen.items == [B]


async def test_gone_is_reported_once_and_the_same_content_comes_back_as_a_change(
    path: Path, poll_interval_s: float
) -> None:
    watching = watch_policy(path, poll_interval_s=poll_interval_s, known_sha256=sha256(A))
    async with collecting(watching) as seen:
        await until(watch_threads, "the watching thread")
        remove(path)
        await seen.wait_for(b"")
        write(path, A)
        await seen.wait_for(A)
        assert seen.items == [b"", A]


async def test_swapped_links_of_a_mounted_directory(tmp_path: Path, poll_interval_s: float) -> None:
    mounted = MountedFile(tmp_path, "policy.yaml", "one")
    watching = watch_policy(
        mounted.path, poll_interval_s=poll_interval_s, known_sha256=sha256(b"one")
    )
    async with collecting(watching) as seen:
        await until(watch_threads, "the watching thread")
        for word in ("two", "three", "two"):
            mounted.update(word)
            await seen.wait_for(word.encode())
        assert b"" not in seen.items


async def test_a_directory_that_is_deleted_and_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "etc"
    make_directory(directory)
    path = directory / "policy.yaml"
    write(path, A)
    watching = watch_policy(path, poll_interval_s=POLL_OFTEN_S, known_sha256=sha256(A))
    async with collecting(watching) as seen:
        shutil.rmtree(directory)
        await seen.wait_for(b"")
        make_directory(directory)
        write(path, B)
        await seen.wait_for(B)


async def test_a_directory_that_comes_later_gets_its_thread_then(tmp_path: Path) -> None:
    directory = tmp_path / "etc"
    watcher = FileWatcher()
    following = watcher.follow(directory / "file", poll_interval_s=0.5, bytes_max=100)
    async with collecting(following) as seen:
        await seen.wait_count(1)
        assert seen.items == [FileUnreadable("cannot be read: No such file or directory")]
        assert not watch_threads()
        make_directory(directory)
        await until(watch_threads, "the watching thread")
        write(directory / "file", A)
        await seen.wait_for(FileContent(A))


async def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    """Opening a pipe would hang until someone writes."""
    following = FileWatcher().follow(tmp_path, poll_interval_s=POLL_OFTEN_S, bytes_max=100)
    async with collecting(following) as seen:
        await seen.wait_for(FileUnreadable("is no regular file"))


async def test_a_file_above_its_limit_is_read_one_byte_too_far(path: Path) -> None:
    write(path, b"x" * 1_000)
    following = FileWatcher().follow(path, poll_interval_s=POLL_OFTEN_S, bytes_max=100)
    async with collecting(following) as seen:
        await seen.wait_for(FileContent(b"x" * 101))


async def test_a_file_that_never_rests_is_reported_and_forgiven(path: Path) -> None:
    watcher = FileWatcher(settle_s=0.05, restless_s=0.3)
    stop = threading.Event()

    def rewrite() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            write(path, b"n: %d\n" % number)

    writer = threading.Thread(target=rewrite)
    following = watcher.follow(
        path, poll_interval_s=POLL_OFTEN_S, bytes_max=100, known_sha256=sha256(A)
    )
    writer.start()
    try:
        async with collecting(following) as seen:
            await seen.wait_count(1)
            (complaint,) = seen.items
            assert isinstance(complaint, FileUnreadable)
            assert complaint.reason.startswith("keeps changing, for 0.3 s now")
            stop.set()
            writer.join()
            write(path, A)
            await seen.wait_for(FileContent(A))
    finally:
        stop.set()
        writer.join()


async def test_files_of_one_directory_share_one_thread_and_the_last_one_ends_it(
    tmp_path: Path,
) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / name, A)
    watcher = FileWatcher()

    follow = functools.partial(watcher.follow, poll_interval_s=POLL_NEVER_S, bytes_max=100)
    async with collecting(follow(tmp_path / "a")) as a, collecting(follow(tmp_path / "b")) as b:
        await a.wait_for(FileContent(A))
        await b.wait_for(FileContent(A))
        assert len(watch_threads()) == 1
        write(tmp_path / "b", B)
        await b.wait_for(FileContent(B))
        assert a.items == [FileContent(A)]
    await until(lambda: not watch_threads(), "the watching thread to end")
