"""The published page, plots and configurations, made from a small result file.

After a change that is meant: `python -m tests.unit.benchmarks.test_page` rewrites the expected
files; review them as a diff.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.harness import page, publish
from benchmarks.harness.charts import Bar, bar_chart
from benchmarks.harness.results import newest_run, read_run, write_run
from benchmarks.harness.stats import Spread
from tests.unit.benchmarks.sample_run import sample_run

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "benchmarks"
RESULT = "20260102T030405-0123456789ab.json"


def test_files_of_a_result_are_as_expected() -> None:
    files = publish.published_files(read_run(GOLDEN / RESULT), RESULT)
    expected = {
        str(path.relative_to(GOLDEN)): path.read_text()
        for path in GOLDEN.rglob("*")
        if path.is_file() and path.name != RESULT
    }
    assert files == expected


def test_result_file_is_what_the_sample_writes(tmp_path: Path) -> None:
    write_run(sample_run(), tmp_path / RESULT)
    assert (tmp_path / RESULT).read_text() == (GOLDEN / RESULT).read_text()
    assert read_run(tmp_path / RESULT) == sample_run()


def test_result_of_another_format_is_refused(tmp_path: Path) -> None:
    write_run(dataclasses.replace(sample_run(), format=99), tmp_path / "old.json")
    with pytest.raises(ValueError, match="format `99`"):
        read_run(tmp_path / "old.json")


def test_newest_result_is_the_last_by_name(tmp_path: Path) -> None:
    assert newest_run(tmp_path) is None
    for name in ("20260102T030405-b.json", "20251231T235959-c.json"):
        (tmp_path / name).touch()
    assert newest_run(tmp_path) == tmp_path / "20260102T030405-b.json"


def test_page_states_ratios_within_rounds() -> None:
    text = page.render(sample_run(), result_name=RESULT)
    assert "| CPU per call, 8 x 16, squeezed | envoy | **0.60** | 0.60..0.60 | lower |" in text
    # (120 - 30) / (165 - 30), in every round.
    assert "| added p50, one call at a time | envoy | **0.67** | 0.67..0.67 | lower |" in text


def test_page_counts_failed_calls() -> None:
    text = page.render(sample_run(), result_name=RESULT)
    row = next(line for line in text.splitlines() if line.startswith("| haproxy | 14.1"))
    assert row.split(" | ")[5] == "3"


def test_page_warns_of_a_machine_that_was_not_quiet() -> None:
    run = sample_run()
    assert "**Mind**" not in page.render(run, result_name=RESULT)
    busy = tuple(dataclasses.replace(entry, foreign_share=0.2) for entry in run.samples)
    text = page.render(dataclasses.replace(run, samples=busy), result_name=RESULT)
    assert "something else used 20% of the machine" in text


def test_page_warns_of_a_partial_run() -> None:
    run = sample_run()
    short = dataclasses.replace(run, method=dataclasses.replace(run.method, complete=False))
    assert "partial or short run" in page.render(short, result_name=RESULT)


def test_page_of_one_proxy_alone_has_no_empty_tables() -> None:
    run = sample_run()
    alone = dataclasses.replace(
        run,
        method=dataclasses.replace(run.method, peers=("attnroute",)),
        samples=tuple(entry for entry in run.samples if entry.peer == "attnroute"),
        memory=(),
        configs={},
    )
    text = page.render(alone, result_name=RESULT)
    assert "Memory" not in text
    assert "Round by round" not in text
    assert "## CPU per call" in text


def test_chart_is_well_formed_and_scaled() -> None:
    bars = [Bar("a<b", Spread(10.0, 8.0, 12.0)), Bar("other", Spread(5.0, -1.0, 6.0))]
    tree = ElementTree.fromstring(bar_chart("T", "us", [("group & more", bars)]))
    widths = [
        float(entry.attrib["width"])
        for entry in tree.iter("{http://www.w3.org/2000/svg}rect")
        if "y" in entry.attrib
    ]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)


def test_chart_without_bars_is_an_error() -> None:
    with pytest.raises(ValueError, match="no bars"):
        bar_chart("T", "us", [])


def test_report_command_names_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish.main(["--help"]) == 2
    assert publish.main([str(tmp_path / "none.json")]) == 2
    broken = tmp_path / "broken.json"
    broken.write_text('{"format": 1}')
    assert publish.main([str(broken)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_publish_writes_below_the_given_folder(tmp_path: Path) -> None:
    publish.publish(GOLDEN / RESULT, tmp_path)
    assert (tmp_path / "README.md").read_text() == (GOLDEN / "README.md").read_text()
    assert (tmp_path / "peers" / "haproxy.cfg").read_text() == "global\n"


if __name__ == "__main__":
    write_run(sample_run(), GOLDEN / RESULT)
    publish.publish(GOLDEN / RESULT, GOLDEN)
