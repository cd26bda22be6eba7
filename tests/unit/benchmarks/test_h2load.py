"""What is read from h2load, and which calls count as good."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.h2load import FRAME, PATH, Exchange, load_command, parse_log, parse_output
from benchmarks.harness.shapes import SINGLE, SQUEEZED_16

OUTPUT = """\
starting benchmark...
spawning thread #0: 8 total client(s). 40000 total requests
Application protocol: h2c
progress: 100% done

finished in {wall}, 57254.42 req/s, 6.55MB/s
requests: 40000 total, 40000 started, 40000 done, {succeeded} succeeded, {failed} failed, \
{errored} errored, 0 timeout
status codes: {succeeded} 2xx, 0 3xx, {failed} 4xx, 0 5xx
traffic: 4.58MB (4800392) total, 2.02MB (2120000) headers (space savings 49.52%), \
585.94KB ({data}) data
                     min         max         mean         sd        +/- sd
time for request:       79us      4.72ms      1.87ms       618us    79.30%
"""


def output(
    *, wall: str = "698.64ms", succeeded: int = 40000, errored: int = 0, messages: int = 40000
) -> str:
    return OUTPUT.format(
        wall=wall,
        succeeded=succeeded,
        failed=40000 - succeeded - errored,
        errored=errored,
        data=messages * len(FRAME),
    )


@pytest.mark.parametrize(
    ("wall", "seconds"), [("698.64ms", 0.69864), ("2.01s", 2.01), ("850us", 0.00085)]
)
def test_wall_time_in_every_unit(wall: str, seconds: float) -> None:
    result = parse_output(output(wall=wall))
    assert result.wall_s == pytest.approx(seconds)
    assert (result.calls, result.failed) == (40000, 0)


def test_calls_that_h2load_calls_failed_are_failed() -> None:
    assert parse_output(output(succeeded=39990, errored=4, messages=39990)).failed == 10


def test_a_grpc_failure_under_http_200_is_a_failure() -> None:
    """Trailers-Only answers are "succeeded" for h2load; their message is missing."""
    assert parse_output(output(messages=39000)).failed == 1000


def test_surplus_data_makes_no_failure_good() -> None:
    assert parse_output(output(succeeded=39000, messages=41000)).failed == 1000


def test_output_without_summary_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match="no summary"):
        parse_output("starting benchmark...\n")


def test_log_gives_ascending_latencies_of_answered_calls() -> None:
    lines = ["1796102934184085\t200\t325\n", "1796102934184459\t-1\t9\n", "17\t200\t173\textra\n"]
    assert parse_log(lines) == (173.0, 325.0)


def test_log_with_other_columns_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match="2 columns"):
        parse_log(["1796102934184085\t200\n"])


def test_frame_is_one_uncompressed_grpc_message() -> None:
    assert FRAME[:5] == b"\x00\x00\x00\x00\x0a"
    assert len(FRAME) == 15


def test_command_bounds_calls_and_logs_only_when_asked(tmp_path: Path) -> None:
    exchange = Exchange(PATH, tmp_path / "f", len(FRAME))
    plain = load_command(
        Path("h2load"), SQUEEZED_16, calls=500, port=9, exchange=exchange, log=None
    )
    assert plain[plain.index("-n") + 1] == "500"
    assert (plain[plain.index("-c") + 1], plain[plain.index("-m") + 1]) == ("8", "16")
    assert plain[plain.index("-d") + 1] == str(exchange.data)
    assert plain[-1] == f"http://127.0.0.1:9{PATH}"
    assert "--log-file" not in plain
    log = tmp_path / "calls.log"
    logged = load_command(Path("h2load"), SINGLE, calls=5, port=9, exchange=exchange, log=log)
    assert logged[logged.index("--log-file") + 1] == str(log)
