"""A directory of bundles and channels: what is changed is changed whole, once, and by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.bundles import SCHEMA, make_bundle, version
from tests.support.small_disk import run_on_small_disk
from tests.support.wait import patience_s

from attnroute.bundle import read
from attnroute.clock import ManualClock
from attnroute.errors import BundleError, ConflictError, RegistryError
from attnroute.registry.files import locked
from attnroute.registry.leader import Leader
from attnroute.registry.store import PREVIOUS_MAX, Store
from attnroute.registry.types import ChannelState

ROOT = Path(__file__).resolve().parents[3]


def filled(root: Path, count: int = 3) -> Store:
    store = Store(root)
    for number in range(count):
        store.add(make_bundle(version(number)))
    return store


def move(store: Store, to: str, channel: str = "stable", **options: Any) -> ChannelState:
    now = store.channel("default", channel)
    return store.point(
        "default", channel, to, expected_generation=now.generation, reason="test", **options
    )


def test_what_is_there_newest_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in ("1.0.9", "1.0.10", "0.9.0"):
        store.add(make_bundle(number))
    store.add(make_bundle("2.0.0", name="other"))
    assert store.names() == ("default", "other")
    assert store.versions("default") == ("1.0.10", "1.0.9", "0.9.0")
    bundles = store.listing().bundles
    assert [bundle.version for bundle in bundles] == ["1.0.10", "1.0.9", "0.9.0", "2.0.0"]
    assert list(bundles[0].files)[-1] == "manifest.json"
    assert bundles[0].feature_schema == SCHEMA
    assert [bundle.name for bundle in store.listing("other").bundles] == ["other"]


def test_nothing_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path / "nothing")
    assert store.listing().bundles == ()
    assert store.channel("default", "stable") == ChannelState("default", "stable")


def test_a_damaged_bundle_is_not_offered(tmp_path: Path) -> None:
    store = filled(tmp_path)
    (tmp_path / "default" / version(1) / "manifest.json").write_text("{")
    assert [bundle.version for bundle in store.listing().bundles] == [version(2), version(0)]
    with pytest.raises(BundleError, match="no JSON"):
        move(store, version(1))


def test_a_bundle_under_another_name_is_not_offered(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    (tmp_path / "default" / "1.0.0").rename(tmp_path / "default" / "9.0.0")
    assert store.listing().bundles == ()
    with pytest.raises(BundleError, match=r"its manifest is that of `default` `1\.0\.0`"):
        store.listed("default", "9.0.0")


def test_a_channel_moves(tmp_path: Path) -> None:
    store = filled(tmp_path)
    first = move(store, version(0))
    assert (first.generation, first.version, first.previous) == (1, version(0), ())
    second = move(store, version(2))
    assert (second.generation, second.previous) == (2, (version(0),))
    assert second.manifest_sha256 == store.listed("default", version(2)).manifest_sha256
    assert store.channel("default", "stable") == second
    assert Store(tmp_path).listing().channels == (second,)
    # Back and forth: each former version stands once.
    assert move(store, version(0)).previous == (version(2),)


def test_the_history_is_bounded(tmp_path: Path) -> None:
    store = filled(tmp_path, PREVIOUS_MAX + 3)
    for number in range(PREVIOUS_MAX + 3):
        state = move(store, version(number))
    assert state.previous == tuple(version(n) for n in range(PREVIOUS_MAX + 1, 1, -1))


def test_who_decided_on_an_old_state_is_told(tmp_path: Path) -> None:
    store = filled(tmp_path)
    move(store, version(0))
    with pytest.raises(ConflictError, match=r"points at `1\.0\.0` in generation 1 by now, not 0"):
        store.point("default", "stable", version(1), expected_generation=0, reason="late")
    assert store.channel("default", "stable").version == version(0)


def test_a_frozen_channel_is_moved_by_operators_only(tmp_path: Path) -> None:
    store = filled(tmp_path)
    frozen = move(store, version(0), operator=True, frozen=True)
    assert frozen.frozen
    with pytest.raises(RegistryError, match="`stable` is frozen \\(test\\); `attnroute model free"):
        move(store, version(1))
    assert not move(store, version(1), operator=True, frozen=False).frozen
    assert move(store, version(2)).version == version(2)


@pytest.mark.parametrize("to", ["1.0.7", "nonsense", "../1.0.0", ""])
def test_a_channel_points_at_what_there_is(tmp_path: Path, to: str) -> None:
    store = filled(tmp_path)
    with pytest.raises(RegistryError):
        move(store, to)
    assert store.channel("default", "stable").generation == 0


@pytest.mark.parametrize("name", ["../etc", "", "A", "a/b", "a" * 64, ".new"])
def test_names_are_no_paths(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path)
    with pytest.raises(RegistryError, match="is no name of a model"):
        store.versions(name)
    with pytest.raises(RegistryError, match="is no name of a channel"):
        store.channel("default", name)


def test_a_directory_of_bundles_alone(tmp_path: Path) -> None:
    """Somebody copied bundles there: the newest serves, until a channel says otherwise."""
    written = filled(tmp_path / "written")
    plain = tmp_path / "plain" / "default"
    plain.mkdir(parents=True)
    for number in range(3):
        (tmp_path / "written" / "default" / version(number)).rename(plain / version(number))
    assert written.versions("default") == ()
    store = Store(tmp_path / "plain")
    state = store.channel("default", "stable")
    assert (state.version, state.generation) == (version(2), 0)
    move(store, version(0))
    assert store.channel("default", "stable").version == version(0)
    assert store.channel("default", "canary").version == ""


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"generation": 1}', '{"generation": "x", "version": "1.0.0"}']
)
def test_a_pointer_that_is_none(tmp_path: Path, text: str) -> None:
    store = filled(tmp_path)
    move(store, version(0))
    (tmp_path / "default" / "channels" / "stable.json").write_text(text)
    with pytest.raises(RegistryError, match=r"stable\.json: .*; point the channel anew"):
        store.channel("default", "stable")


class TestRetention:
    def test_the_newest_stay_and_what_channels_hold(self, tmp_path: Path) -> None:
        store = filled(tmp_path, 8)
        move(store, version(0))
        move(store, version(1))
        move(store, version(2), channel="canary")
        assert store.prune("default", 2) == (version(5), version(4), version(3))
        assert store.versions("default") == tuple(version(n) for n in (7, 6, 2, 1, 0))
        # What serves and what served before can still be read, and rolled back to.
        assert move(store, store.channel("default", "stable").previous[0]).version == version(0)
        assert not [path for path in (tmp_path / "default").iterdir() if ".new-" in path.name]

    def test_what_a_killed_writer_left_goes(self, tmp_path: Path) -> None:
        store = filled(tmp_path, 1)
        left = [tmp_path / "default" / ".new-a", tmp_path / "default" / "channels" / ".file-b"]
        left[0].mkdir()
        (left[0] / "score.onnx").write_bytes(b"half")
        left[1].write_bytes(b"{")
        store.prepare("default")
        assert all(path.exists() for path in left), "somebody may still write it"
        for path in left:
            os.utime(path, (0, 0))
        store.prepare("default")
        assert not any(path.exists() for path in left)
        assert store.versions("default") == (version(0),)


class TestLeader:
    def test_one_leads(self, tmp_path: Path) -> None:
        store = filled(tmp_path, 1)
        clock = ManualClock()
        one = Leader(tmp_path / "default", "one", clock, who="host-1", lease_s=15)
        two = Leader(tmp_path / "default", "two", clock, who="host-2", lease_s=15)
        assert one.renew()
        assert not two.renew()
        assert two.other == "host-1"
        store.add(make_bundle("1.1.0"), leader="one")
        with pytest.raises(ConflictError, match="another trainer publishes here"):
            store.add(make_bundle("1.1.1"), leader="two")
        with pytest.raises(ConflictError, match="another trainer publishes here"):
            store.point(
                "default", "canary", "1.1.0", expected_generation=0, reason="", leader="two"
            )

    def test_it_stays_while_it_says_so(self, tmp_path: Path) -> None:
        filled(tmp_path, 1)
        clock = ManualClock()
        one = Leader(tmp_path / "default", "one", clock, lease_s=15)
        two = Leader(tmp_path / "default", "two", clock, lease_s=15)
        for _ in range(10):
            assert one.renew()
            assert not two.renew()
            clock.advance(10)

    def test_one_that_is_gone_is_followed(self, tmp_path: Path) -> None:
        store = filled(tmp_path, 1)
        clock = ManualClock()
        one = Leader(tmp_path / "default", "one", clock, lease_s=15)
        two = Leader(tmp_path / "default", "two", clock, lease_s=15)
        assert one.renew()
        assert not two.renew()
        clock.advance(14)
        assert not two.renew()
        clock.advance(2)
        assert two.renew()
        # It was only slow: it learns so before it publishes anything.
        with pytest.raises(ConflictError):
            store.add(make_bundle("1.1.0"), leader="one")
        assert not one.renew()

    def test_one_that_resigns_is_followed_at_once(self, tmp_path: Path) -> None:
        filled(tmp_path, 1)
        clock = ManualClock()
        one = Leader(tmp_path / "default", "one", clock)
        two = Leader(tmp_path / "default", "two", clock)
        assert one.renew()
        assert not two.renew()
        two.resign()  # it is not its place
        assert not two.renew()
        one.resign()
        assert two.renew()


class TestTwoPublishers:
    def test_of_two_at_once_one_wins_and_the_other_is_told(self, tmp_path: Path) -> None:
        store = filled(tmp_path, 2)
        start = threading.Barrier(8)
        results: list[str] = []

        def publish(number: int) -> None:
            start.wait()
            try:
                store.point(
                    "default", "canary", version(number % 2), expected_generation=0, reason="race"
                )
                results.append("moved")
            except ConflictError:
                results.append("told")

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience_s())
        assert sorted(results) == ["moved"] + ["told"] * 7
        assert store.channel("default", "canary").generation == 1

    def test_two_processes(self, tmp_path: Path) -> None:
        """Each moves the channel fifty times, again and again from what it sees: no move is
        lost."""
        store = filled(tmp_path, 2)
        code = """
import sys
from pathlib import Path
from typing import Any
from attnroute.errors import ConflictError
from attnroute.registry.store import Store
store, moved, told = Store(Path(sys.argv[1])), 0, 0
while moved < 50:
    now = store.channel("default", "canary")
    try:
        store.point("default", "canary", sys.argv[2], expected_generation=now.generation, reason="")
        moved += 1
    except ConflictError:
        told += 1
print(told)
"""
        publishers = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(tmp_path), version(number)],
                stdout=subprocess.PIPE, text=True,
            )
            for number in range(2)
        ]  # fmt: skip
        for publisher in publishers:
            assert publisher.wait(patience_s() * 2) == 0
            assert publisher.stdout is not None
            publisher.stdout.close()
        assert store.channel("default", "canary").generation == 100

    def test_a_lock_that_is_held_for_long(self, tmp_path: Path) -> None:
        filled(tmp_path, 1)
        with (
            locked(tmp_path / "default"),
            pytest.raises(RegistryError, match=r"another process has held `\.lock` for 0\.05 s"),
            locked(tmp_path / "default", wait_s=0.05),
        ):
            raise AssertionError("two hold it")


KILLED = """
import os, sys
from pathlib import Path
from typing import Any
from tests.support.bundles import make_bundle, version
from attnroute.registry.store import Store
store = Store(Path(sys.argv[1]))
for number in range(int(sys.argv[2]), 10_000):
    store.add(make_bundle(version(number)))
    now = store.channel("default", "canary")
    store.point("default", "canary", version(number), expected_generation=now.generation, reason="")
    store.prune("default", 5)
    if number == int(sys.argv[2]):
        print("began", flush=True)
"""


def test_a_publisher_that_is_killed_at_any_moment(tmp_path: Path) -> None:
    """After each kill everything that can be seen is whole, and the next publisher goes on."""
    first = 0
    for round_ in range(4):
        publisher = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), str(first)],
            stdout=subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        assert publisher.stdout is not None
        assert publisher.stdout.readline() == b"began\n"
        # Somewhere in the next publications, elsewhere each time.
        threading.Event().wait(0.013 * (1 + round_ * 3))
        publisher.kill()
        publisher.wait(patience_s())
        publisher.stdout.close()
        store = Store(tmp_path)
        state = store.channel("default", "canary")
        assert state.version in store.versions("default")
        for known in store.versions("default"):
            read(store.path("default", known), expected_schema=SCHEMA)
        first = max(int(known.split(".")[2]) for known in store.versions("default")) + 1
        store.add(make_bundle(version(first)))
        first += 1


DISK_FULL = """
import sys
from pathlib import Path
from typing import Any
from tests.support.bundles import SCHEMA, make_bundle, version
from attnroute.bundle import read
from attnroute.errors import BundleError, RegistryError
from attnroute.registry.store import Store
store = Store(Path(sys.argv[1]))
store.add(make_bundle(version(0)))
first = store.point("default", "stable", version(0), expected_generation=0, reason="first")
filler = (Path(sys.argv[1]) / "filler").open("wb", buffering=0)
try:
    while True:
        filler.write(b"x" * 4096)
except OSError:
    pass
for attempt in (
    lambda: store.add(make_bundle(version(1))),
    lambda: store.point("default", "stable", version(0), expected_generation=1, reason="again"),
):
    try:
        attempt()
    except (BundleError, RegistryError) as error:
        print(error)
    else:
        sys.exit("the disk was not full")
assert store.channel("default", "stable") == first
read(store.path("default", version(0)), expected_schema=SCHEMA)
assert store.versions("default") == (version(0),)
filler.truncate(0)
store.add(make_bundle(version(1)))
store.point("default", "stable", version(1), expected_generation=1, reason="space again")
"""


def test_disk_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    done = run_on_small_disk(DISK_FULL, disk, kib=300, arguments=(str(disk),))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("No space left on device" in line for line in lines), lines


def test_pointer_files_are_for_people_too(tmp_path: Path) -> None:
    store = filled(tmp_path, 1)
    move(store, version(0))
    document = json.loads((tmp_path / "default" / "channels" / "stable.json").read_text())
    assert document["version"] == version(0)
    assert document["reason"] == "test"
