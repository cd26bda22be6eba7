"""A small run with figures that are easy to check by hand."""

from __future__ import annotations

from benchmarks.harness.machine import Machine
from benchmarks.harness.results import FORMAT, MemorySample, Method, Run, Sample
from benchmarks.harness.shapes import SHAPES, Shape

PEERS = ("direct", "attnroute", "envoy", "haproxy")
ROUNDS = 3
# CPU us per call (squeezed and plain alike), p50 and p99 as the client sees them, RSS in MB.
_FIGURES = {
    "direct": (0.0, 30.0, 50.0, 0.0),
    "attnroute": (12.0, 120.0, 160.0, 70.0),
    "envoy": (20.0, 165.0, 250.0, 68.0),
    "haproxy": (14.0, 130.0, 170.0, 19.0),
}
CALLS = 10_000


def sample(peer: str, shape: Shape, number: int) -> Sample:
    """Rounds differ by 1 % and go the same way for every proxy, so ratios do not spread."""
    cpu_us, p50_us, p99_us, _ = _FIGURES[peer]
    drift = 1.0 + 0.01 * number
    cpu_s = cpu_us * drift * CALLS / 1e6
    return Sample(
        round=number,
        peer=peer,
        shape=shape.name,
        calls=CALLS,
        failed=3 if (peer, number) == ("haproxy", 1) else 0,
        wall_s=0.4,
        cpu_s=round(cpu_s, 6),
        user_s=round(cpu_s * 0.75, 2),
        kernel_s=round(cpu_s * 0.25, 2),
        p50_us=p50_us + number if shape.latency else None,
        p99_us=p99_us + number if shape.latency else None,
        foreign_share=0.01,
        stolen_share=0.0,
    )


def sample_run() -> Run:
    """A complete run but for nginx."""
    return Run(
        format=FORMAT,
        started="2026-01-02T03:04:05Z",
        duration_s=61.5,
        commit="0123456789ab",
        command="benchmarks/run.py --rounds 3",
        machine=Machine("Some CPU", 2, 24.0, "6.1.0", "Debian GNU/Linux 12", "cubic"),
        versions={"attnroute": "0.1.0", "envoy": "1.40.0"},
        method=Method(
            rounds=ROUNDS,
            calls=CALLS,
            peers=PEERS,
            shapes=tuple(shape.name for shape in SHAPES),
            endpoints=4,
            message_bytes=10,
            proxy_core=0,
            load_core=1,
            complete=True,
        ),
        configs={"envoy": "static_resources: {}\n", "haproxy": "global\n"},
        samples=tuple(
            sample(peer, shape, number)
            for number in range(ROUNDS)
            for peer in PEERS
            for shape in SHAPES
            if not (peer == "direct" and shape.squeezed)
        ),
        memory=tuple(
            MemorySample(number, peer, moment, round(_FIGURES[peer][3] * 1e6))
            for number in range(ROUNDS)
            for peer in PEERS[1:]
            for moment in ("loaded", "idle-100", "touched-100")
        ),
    )
