"""The files of a run: a readable picture, a page that needs nothing else, figures as JSON."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from attnroute.demo.balancers import BALANCERS, MISSING
from attnroute.demo.messages import Sample
from attnroute.demo.models import Swap
from attnroute.demo.plan import make_plan
from attnroute.demo.report import binned_means, draw, write_report
from attnroute.demo.results import TOO_SLOW, Point, Results
from attnroute.demo.world import WORLDS

PLAN = make_plan(90.0, BALANCERS)


def some_results(*, lateness_s: float = 0.0) -> Results:
    results = Results(WORLDS["mixed"], PLAN, BALANCERS)
    for turn in PLAN.slices:
        results.add(
            Sample(turn.number, 2.0 + 0.1 * step, lateness_s, 0.01 * (1 + step), 0, 3, 0.0, 0.01)
            for step in range(50)
        )
    return results


def png_pixels(data: bytes) -> tuple[int, int, bytes]:
    """(width, height, raw rows); fails for anything that is no whole PNG."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, packed, size = 8, b"", (0, 0)
    while True:
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        (checksum,) = struct.unpack_from(">I", data, at + 8 + length)
        assert zlib.crc32(kind + body) == checksum
        if kind == b"IHDR":
            size = struct.unpack_from(">II", body)
        elif kind == b"IDAT":
            packed += body
        elif kind == b"IEND":
            return *size, zlib.decompress(packed)
        at += 12 + length


def test_the_picture_has_a_line_for_each_balancer() -> None:
    width, height, pixels = png_pixels(draw(some_results()))
    empty_width, empty_height, empty = png_pixels(draw(Results(WORLDS["mixed"], PLAN, BALANCERS)))
    assert (width, height) == (empty_width, empty_height)
    assert width > 1000
    different = sum(a != b for a, b in zip(pixels, empty, strict=True))
    assert different > 5000


def test_a_swap_is_marked_on_the_picture() -> None:
    with_swap = some_results()
    with_swap.models.swaps.append(Swap(0, "1.0.0", at_s=5.0, time_s=7.0))
    assert png_pixels(draw(with_swap)) != png_pixels(draw(some_results()))


def test_the_page_holds_picture_table_and_what_is_missing(tmp_path: Path) -> None:
    files = write_report(
        tmp_path / "new" / "folder", some_results(), {"a": 1}, "attnroute demo <x>"
    )
    page = files.page.read_text(encoding="utf-8")
    HTMLParser().feed(page)
    image = re.search(r'src="data:image/png;base64,([^"]+)"', page)
    assert image is not None
    assert base64.b64decode(image[1]) == files.plot.read_bytes()
    assert all(f"<td>{balancer.label}</td>" in page for balancer in BALANCERS)
    assert MISSING[0] in page
    assert "attnroute demo &lt;x&gt;" in page
    assert "http" not in page
    assert TOO_SLOW not in page
    assert json.loads(files.result.read_text()) == {"a": 1}


def test_the_page_says_when_the_machine_was_too_slow(tmp_path: Path) -> None:
    files = write_report(tmp_path, some_results(lateness_s=1.0), {}, "")
    assert TOO_SLOW in files.page.read_text(encoding="utf-8")


def test_bins_by_hand() -> None:
    points = [Point(0.0, 1.0), Point(0.9, 3.0), Point(2.0, 5.0), Point(3.0, 7.0)]
    means = binned_means(points, total_s=3.0, bins=3)
    assert means[0] == 2.0
    assert math.isnan(means[1])
    assert means[2] == pytest.approx(6.0)
