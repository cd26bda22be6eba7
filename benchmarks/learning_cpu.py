"""CPU that a sidecar's Python takes while it learns: `python -m benchmarks.learning_cpu`.

One sidecar, by default with 30 endpoints and 32 request classes, a trainer and a scrape of
`/metrics/training` each 5 s, under a light load that keeps every cell moving. What Python takes
does not depend on the load: it is once a second. Prints milliseconds of CPU per second for the
threads that forward and for all others, and the memory that the process has in the end, with
learning and, in a second run, without it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

DATA_THREADS = ("attnroute-data", "data-")
READY_TIMEOUT_S = 60.0


class _Peer(grpc.GenericRpcHandler):
    """Answers every method with an empty message."""

    def service(self, _details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    @staticmethod
    async def _answer(_request: bytes, _context: Any) -> bytes:
        return b""


def thread_cpu_s(pid: int) -> dict[str, float]:
    """CPU seconds of every thread of a process so far, added up by name."""
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
        used = rest.split()
        found[name] = found.get(name, 0.0) + (int(used[11]) + int(used[12])) * tick_s
    return found


def resident_mb(pid: int) -> float:
    """Memory that a process has now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def start(stack: ExitStack, command: str, config: Path, text: str) -> tuple[int, Any]:
    """Starts `attnroute COMMAND`; returns its pid and bound addresses."""
    config.write_text(text)
    ports = config.with_suffix(".json")
    process = subprocess.Popen(
        [sys.executable, "-m", "attnroute", command, "--config", config, "--ports-file", ports],
        stderr=subprocess.DEVNULL,
    )
    stack.callback(process.wait)
    stack.callback(process.send_signal, signal.SIGKILL)
    end_s = time.monotonic() + READY_TIMEOUT_S
    while not ports.exists():
        if process.poll() is not None or time.monotonic() > end_s:
            raise SystemExit(f"`attnroute {command}` does not become ready")
        time.sleep(0.05)
    return process.pid, json.loads(ports.read_bytes())


def scrape(address: str) -> None:
    """As a trainer does; whatever proxy the environment names."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics/training", timeout=READY_TIMEOUT_S) as page:
        page.read()


async def call_all(address: str, classes: int, end_s: float) -> int:
    """Calls one method after another until then; returns how many calls."""
    calls = 0
    async with grpc.aio.insecure_channel(address, [("grpc.default_authority", "cart")]) as channel:
        methods: list[Any] = [
            channel.unary_unary(f"/bench.Shop/Method{number}") for number in range(classes)
        ]
        while time.monotonic() < end_s:
            await asyncio.gather(*(method(b"x") for method in methods))
            calls += len(methods)
            await asyncio.sleep(0.01)
    return calls


async def run(options: argparse.Namespace, *, learning: bool) -> None:
    """Measures one sidecar."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Peer(),))
    ports = [server.add_insecure_port("127.0.0.1:0") for _ in range(options.endpoints)]
    await server.start()
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        place = Path(directory)
        _, trainer = start(
            stack,
            "trainer",
            place / "trainer.yaml",
            'fleet: {address: "127.0.0.1:0"}\nhttp: "127.0.0.1:0"\n',
        )
        listed = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
        policy = (
            'admin: {grpc: "127.0.0.1:0", http: "127.0.0.1:0"}\n'
            'listeners: [{mode: explicit, address: "127.0.0.1:0"}]\n'
            f"services:\n  cart:\n    endpoints: {{static: [{listed}]}}\n"
        )
        if learning:
            policy += f"    {options.service}\nfleet: {{trainer: '{trainer['fleet']}'}}\n"
        pid, bound = start(stack, "sidecar", place / "policy.yaml", policy)
        address = next(iter(bound["listeners"].values()))
        await call_all(address, options.classes - 1, time.monotonic() + options.warmup)
        before, began_s = thread_cpu_s(pid), time.monotonic()
        load = asyncio.create_task(
            call_all(address, options.classes - 1, began_s + options.seconds)
        )
        while learning and not load.done():
            await asyncio.sleep(5.0)
            await asyncio.to_thread(scrape, bound["admin"]["http"])
        calls = await load
        after, took_s = thread_cpu_s(pid), time.monotonic() - began_s
        memory_mb = resident_mb(pid)
    await server.stop(None)
    spent = {name: (cpu_s - before.get(name, 0.0)) / took_s for name, cpu_s in after.items()}
    forwarding = sum(cpu for name, cpu in spent.items() if name.startswith(DATA_THREADS))
    others = sum(spent.values()) - forwarding
    kind = "with learning" if learning else "without"
    print(
        f"{kind}: {options.endpoints} endpoints, {options.classes} classes, "
        f"{calls / took_s:.0f} calls/s: Python {others * 1000:.1f} ms/s "
        f"({others:.2%} of a core), forwarding {forwarding * 1000:.1f} ms/s, "
        f"resident {memory_mb:.0f} MB"
    )
    for name, cpu in sorted(spent.items(), key=lambda item: -item[1]):
        if cpu > 1e-4:
            print(f"    {name}: {cpu * 1000:.1f} ms/s")


def main() -> None:
    """Both runs, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoints", type=int, default=30)
    parser.add_argument("--classes", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warmup", type=float, default=5.0)
    parser.add_argument("--service", default="request_class: {}", help="YAML of the service")
    options = parser.parse_args()
    for learning in (True, False):
        asyncio.run(run(options, learning=learning))


if __name__ == "__main__":
    main()
