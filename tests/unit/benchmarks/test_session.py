"""Options, the order of the rounds, and the small readers around them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.harness.machine import CoreTime, Machine
from benchmarks.harness.session import (
    PARTIAL_RESULTS,
    QUICK_CALLS,
    QUICK_ROUNDS,
    RESULTS,
    parse_options,
)
from benchmarks.harness.shapes import PLAIN_1, SHAPES
from benchmarks.harness.tools import ROOT, parse_version
from benchmarks.peers import free_ports
from benchmarks.peers.attnroute import count_calls
from benchmarks.peers.catalog import PEERS
from benchmarks.scenarios.forward import turned
from tests.support.wait import patience_s, until_blocking


def test_a_full_run_is_published() -> None:
    options = parse_options([])
    assert options.complete
    assert options.out == RESULTS
    assert options.peers == tuple(PEERS)
    assert options.shapes == SHAPES


@pytest.mark.parametrize(
    "argv",
    [
        ["--quick"],
        ["--rounds", "1"],
        ["--calls", "100"],
        ["--only", "envoy"],
        ["--shape", "plain-8x1"],
        ["--no-memory"],
    ],
)
def test_a_partial_run_is_not_published(argv: list[str]) -> None:
    options = parse_options(argv)
    assert not options.complete
    assert options.out == PARTIAL_RESULTS


def test_options_combine() -> None:
    argv = ["--quick", "--only", "nginx", "--only", "attnroute", "--shape", PLAIN_1.name]
    options = parse_options(argv)
    assert (options.rounds, options.calls) == (QUICK_ROUNDS, QUICK_CALLS)
    assert options.peers == ("attnroute", "nginx")
    assert options.shapes == (PLAIN_1,)
    assert parse_options(["--quick", "--rounds", "5"]).rounds == 5


@pytest.mark.parametrize("argv", [["--rounds", "0"], ["--only", "traefik"], ["--shape", "1x9"]])
def test_bad_options_exit_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(argv)
    assert ended.value.code == 2
    assert argv[1] in capsys.readouterr().err


def test_order_turns_so_that_nobody_is_always_first_or_behind_the_same() -> None:
    orders = [turned(("a", "b", "c", "d"), number) for number in range(8)]
    assert all(sorted(order) == ["a", "b", "c", "d"] for order in orders)
    assert {order[0] for order in orders} == {"a", "b", "c", "d"}
    before_b = {order[order.index("b") - 1] for order in orders if order[0] != "b"}
    assert before_b == {"a", "c"}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/", "2.6.12-1+deb12u4"),
        ("nginx version: nginx/1.22.1", "1.22.1"),
        ("h2load nghttp2/1.52.0", "1.52.0"),
        ("\nenvoy  version: 9e55809337/1.40.0/Clean/RELEASE/BoringSSL", "1.40.0"),
        ("attnroute, version 0.1.0", "0.1.0"),
        ("Python 3.11.7", "3.11.7"),
        ("no number", "unknown"),
    ],
)
def test_version(text: str, version: str) -> None:
    assert parse_version(text) == version


def test_cores_busy_time_leaves_out_idle_and_guests() -> None:
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    reading = CoreTime.parse("cpu  100 20 30 9000 500 4 6 70 80 90")
    assert reading.busy_s == pytest.approx(160 * tick_s)
    assert reading.stolen_s == pytest.approx(70 * tick_s)


def test_machine_is_described() -> None:
    machine = Machine.here()
    assert machine.cores == os.cpu_count()
    assert machine.memory_gib > 0
    assert "-" not in machine.kernel


def test_own_metrics_are_summed_over_labels() -> None:
    text = (
        "# HELP attnroute_requests_total Calls.\n"
        "# TYPE attnroute_requests_total counter\n"
        'attnroute_requests_total{service="a b",grpc_status="OK"} 40\n'
        'attnroute_requests_total{service="a b",grpc_status="UNAVAILABLE"} 2\n'
        'attnroute_requests_total_by_day{service="a"} 9\n'
    )
    assert count_calls(text) == 42


def test_ports_are_distinct() -> None:
    assert len(set(free_ports(50))) == 50


def test_every_system_tool_is_here() -> None:
    """The other tests start children through these; on a system without them say so here."""
    assert all(shutil.which(name) for name in ("setpriv", "taskset", "sh"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_children_and_says_130(tmp_path: Path, number: int) -> None:
    """The real command, with one endless child in place of a measurement."""
    script = tmp_path / "stuck.py"
    script.write_text(
        "import sys, signal\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from contextlib import ExitStack\n"
        "from pathlib import Path\n"
        "from benchmarks.harness import session\n"
        "from benchmarks.harness.process import busy_loop\n"
        "def measure(options, *, command):\n"
        "    with ExitStack() as stack:\n"
        "        core = min(__import__('os').sched_getaffinity(0))\n"
        f"        loop = busy_loop(core=core, directory=Path({str(tmp_path)!r}), limit_s=60)\n"
        "        stack.callback(loop.stop)\n"
        "        print(loop.pid, flush=True)\n"
        "        signal.pause()\n"
        "session.measure = measure\n"
        "sys.exit(session.main(['--quick']))\n"
    )
    runner = subprocess.Popen(
        # Ignored, as a shell does for what it starts in the background.
        ["sh", "-c", 'trap "" INT; exec "$0" "$1"', sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert runner.stdout is not None
    loop_pid = int(runner.stdout.readline())
    runner.send_signal(number)
    _, errors = runner.communicate(timeout=patience_s())
    assert runner.returncode == 130
    assert "interrupted" in errors
    until_blocking(lambda: not Path(f"/proc/{loop_pid}").exists(), "the busy loop to be gone")
