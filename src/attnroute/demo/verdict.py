"""What the demo claims: that `learned` is faster than balancers that do not learn."""

from __future__ import annotations

from attnroute.demo.balancers import BEATEN_BY_LEARNED, LEARNED
from attnroute.demo.results import Results

__all__ = ["shortfalls"]


def shortfalls(results: Results) -> tuple[str, ...]:
    """Every comparison that `learned` did not win, in words; empty if it won all. Without calls
    nothing is won."""
    rows = {
        balancer.key: (balancer, figures)
        for balancer, figures in zip(results.balancers, results.figures(), strict=True)
    }
    _, learned = rows[LEARNED]
    found = []
    for key in BEATEN_BY_LEARNED:
        balancer, peer = rows[key]
        for what, ours_ms, theirs_ms in (
            ("mean", learned.mean_ms, peer.mean_ms),
            ("p99", learned.p99_ms, peer.p99_ms),
        ):
            if not ours_ms < theirs_ms:
                found.append(
                    f"`learned` did not beat `{balancer.label}`: {what} {ours_ms:.1f} ms "
                    f"against {theirs_ms:.1f} ms"
                )
    return tuple(found)
