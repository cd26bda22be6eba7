"""MD-05: what lies where a bundle should is no model. It is refused by type, size and sha256 before
anything parses it, in bounded time and memory, and the process goes on."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tests.support.bundles import SCHEMA, make_bundle

from attnroute.bundle import Bundle, read, write
from attnroute.errors import BundleError

LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
NAMES = ["score.onnx", "manifest.json", "probe.npz", "card.md"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("md05"), make_bundle())


@pytest.fixture
def bundle(written: Path, tmp_path: Path) -> Path:
    """A good bundle that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "default" / "1.0.0"))


def look(path: Path) -> Bundle:
    return read(path, expected_schema=SCHEMA)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def pointer(path: Path) -> None:
    path.write_bytes(LFS_POINTER)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeros(path: Path) -> None:
    os.truncate(path, 0)
    os.truncate(path, 2 << 30)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def missing(path: Path) -> None:
    path.unlink()


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (empty, ""),
    (pointer, ""),
    (half, ""),
    (zeros, "bytes"),
    (directory, "is a directory, expected a file"),
    (loop, "cannot be opened: Too many levels of symbolic links"),
    (fifo, "is a pipe, expected a file"),
    (missing, "cannot be opened: No such file"),
    (device, "is a device, expected a file"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("damage", "words"), DAMAGES, ids=lambda value: getattr(value, "__name__", "")
)
def test_md_05_not_a_file_of_a_bundle(
    bundle: Path, name: str, damage: Callable[[Path], None], words: str
) -> None:
    assert look(bundle).manifest.version == "1.0.0"
    damage(bundle / name)
    tracemalloc.start()
    try:
        with pytest.raises(BundleError) as caught:
            look(bundle)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert message.startswith(f"{bundle}: `{name}`"), message
    assert words in message
    # Two gigabytes are refused by their size, not by reading them.
    assert peak_bytes < 4 << 20


@pytest.mark.parametrize("name", NAMES)
def test_md_05_bit_flips(bundle: Path, name: str) -> None:
    rng = random.Random(5)
    path = bundle / name
    good = path.read_bytes()
    for _ in range(100):
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(bad))
        if name == "manifest.json":
            # The manifest is what the signature and the registry's sha256 are over; without them a
            # flip within a text is a manifest that says something else.
            with suppress(BundleError):
                look(bundle)
        else:
            with pytest.raises(BundleError, match="sha256"):
                look(bundle)
    path.write_bytes(good)
    assert look(bundle).manifest.name == "default"


def test_md_05_a_hundred_flips_at_once(bundle: Path) -> None:
    rng = random.Random(6)
    data = bytearray((bundle / "score.onnx").read_bytes())
    for _ in range(100):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    (bundle / "score.onnx").write_bytes(bytes(data))
    with pytest.raises(BundleError, match="was changed or damaged"):
        look(bundle)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may read everything, so it is somebody else for a moment."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_md_05_no_permission(written: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        bundle = Path(shutil.copytree(written, Path(place) / "1.0.0"))
        with unprivileged():
            look(bundle)
        (bundle / "score.onnx").chmod(0)
        with (
            unprivileged(),
            pytest.raises(BundleError, match=r"`score\.onnx` cannot be opened: Permission"),
        ):
            look(bundle)


def test_md_05_the_directory_itself(tmp_path: Path) -> None:
    file = tmp_path / "1.0.0"
    file.write_bytes(b"x")
    with pytest.raises(BundleError, match="Not a directory"):
        look(file)
    link = tmp_path / "loop"
    link.symlink_to("loop")
    with pytest.raises(BundleError, match="Too many levels"):
        look(link)
    with pytest.raises(BundleError, match="No such file"):
        look(tmp_path / "nothing")
