"""Ten thousand client connections that do nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support.idle_connections import idle_connections
from tests.support.sidecar import Sidecar

pytestmark = pytest.mark.timeout(600)

CONNECTIONS = 10_000


async def test_ten_thousand_idle_connections(start_sidecar: Callable[..., Sidecar]) -> None:
    await idle_connections(CONNECTIONS, start_sidecar)
