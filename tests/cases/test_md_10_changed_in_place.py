"""MD-10: the files of a loaded bundle are cut short, overwritten or deleted, or the disk is full.
What runs is not touched; who reads the bundle again finds out by the hash."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tests.support.bundles import SCHEMA, make_bundle
from tests.support.small_disk import run_on_small_disk

from attnroute.bundle import read, write
from attnroute.errors import BundleError, ConflictError


def cut_short(bundle: Path) -> None:
    for path in bundle.iterdir():
        os.truncate(path, path.stat().st_size // 3)


def overwritten(bundle: Path) -> None:
    for path in bundle.iterdir():
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.write(b"\0" * size)


def one_weight(bundle: Path) -> None:
    with (bundle / "encode_endpoints.onnx").open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x40]))


def deleted(bundle: Path) -> None:
    shutil.rmtree(bundle)


@pytest.mark.parametrize("change", [cut_short, overwritten, one_weight, deleted])
def test_md_10_what_runs_is_not_touched(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = write(tmp_path, make_bundle())
    loaded = read(path, expected_schema=SCHEMA)
    session = onnxruntime.InferenceSession(loaded.graphs["encode_endpoints.onnx"])
    feed = {"endpoint": loaded.probe.inputs["endpoint"]}
    before = session.run(None, feed)

    change(path)

    for first, second in zip(before, session.run(None, feed), strict=True):
        np.testing.assert_array_equal(first, second)
    # A session that is built again from what was read is the same too.
    again = onnxruntime.InferenceSession(loaded.graphs["encode_endpoints.onnx"])
    np.testing.assert_array_equal(before[0], again.run(None, feed)[0])
    with pytest.raises(BundleError):
        read(path, expected_schema=SCHEMA)


FULL_DISK = """
import sys
from pathlib import Path
from tests.support.bundles import SCHEMA, make_bundle, version
from attnroute.bundle import read, write
from attnroute.errors import BundleError

disk = Path(sys.argv[1])
written = []
for number in range(200):
    try:
        written.append(write(disk, make_bundle(version(number))))
    except BundleError as error:
        print(error)
        break
else:
    sys.exit("the disk was never full")
assert written, "not even one bundle fits"
for path in written:
    read(path, expected_schema=SCHEMA)
names = sorted(path.name for path in (disk / "default").iterdir())
assert names == sorted(path.name for path in written), names
"""


def test_md_10_disk_full(tmp_path: Path) -> None:
    done = run_on_small_disk(
        FULL_DISK, tmp_path / "disk", kib=256, arguments=(str(tmp_path / "disk"),)
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be written: No space left on device; see that" in done.stdout


def test_md_10_a_bundle_is_never_written_over(tmp_path: Path) -> None:
    path = write(tmp_path, make_bundle(seed=1))
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(ConflictError, match="exists already, and a bundle never changes"):
        write(tmp_path, make_bundle(seed=2))
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert [entry.name for entry in path.parent.iterdir()] == ["1.0.0"]
