"""Client connections that do nothing; `make conformance` has ten thousand."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.idle_connections import idle_connections
from tests.support.sidecar import Sidecar

CONNECTIONS = 3_000


async def test_idle_connections_cost_little_and_hurt_nobody(
    start_sidecar: Callable[..., Sidecar],
) -> None:
    await idle_connections(CONNECTIONS, start_sidecar)
