"""grpc-go on either end of a real sidecar."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conformance.peers import Command, compare, compare_python_client
from tests.support.sidecar import Sidecar

pytestmark = pytest.mark.timeout(600)
Start = Callable[..., Sidecar]


def test_go_client_to_go_endpoint(go_peer: Command, go_endpoint: str, start_sidecar: Start) -> None:
    compare(go_peer, go_endpoint, start_sidecar)


def test_go_client_to_python_endpoint(
    go_peer: Command, python_endpoint: str, start_sidecar: Start
) -> None:
    compare(go_peer, python_endpoint, start_sidecar)


async def test_python_client_to_go_endpoint(go_endpoint: str, start_sidecar: Start) -> None:
    await compare_python_client(go_endpoint, start_sidecar)
