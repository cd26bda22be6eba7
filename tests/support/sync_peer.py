"""A gRPC endpoint and calls to it for tests without an event loop.

Tests of the sidecar process wait for files, signals and exits, which would stop an event loop and
with it an endpoint that runs there; this one serves from threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from tests.support.wait import patience_s

SERVICE = "test.Peer"


@dataclass
class SyncPeer:
    """What reached the endpoint, and what its blocked calls wait for. delay_s: before it answers
    `Unary`."""

    delay_s: float = 0.0
    address: str = ""
    calls: int = 0
    release: threading.Event = field(default_factory=threading.Event)

    def unary(self, request: bytes, _context: Any) -> bytes:
        """Sends the request back."""
        self.calls += 1
        if self.delay_s > 0:
            time.sleep(self.delay_s)
        return request

    def block(self, request: bytes, _context: Any) -> bytes:
        """Answers when `release` is set."""
        self.calls += 1
        self.release.wait(patience_s())
        return request


@contextmanager
def sync_peer(*, delay_s: float = 0.0) -> Iterator[SyncPeer]:
    """A running endpoint with `Unary` and `Block`."""
    peer = SyncPeer(delay_s)
    with ThreadPoolExecutor(max_workers=8) as workers:
        server = grpc.server(workers)
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Unary": grpc.unary_unary_rpc_method_handler(peer.unary),
            "Block": grpc.unary_unary_rpc_method_handler(peer.block),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        peer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield peer
        finally:
            peer.release.set()
            server.stop(None).wait()


@contextmanager
def sync_channel(address: str, *, authority: str = "cart") -> Iterator[grpc.Channel]:
    """A channel with a connection of its own, that asks for a service of the sidecar."""
    options = (
        ("grpc.default_authority", authority),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    )
    with grpc.insecure_channel(address, options=options) as channel:
        yield channel


def unary(
    channel: grpc.Channel,
    message: bytes = b"x",
    method: str = "Unary",
    metadata: Sequence[tuple[str, str | bytes]] = (),
) -> bytes:
    """One call; raises grpc.RpcError."""
    call: Any = channel.unary_unary(f"/{SERVICE}/{method}")
    answer: bytes = call(message, timeout=patience_s(), metadata=metadata)
    return answer


def start_unary(channel: grpc.Channel, message: bytes = b"x", method: str = "Block") -> Any:
    """One call in flight: a future with `result()` and `code()`."""
    call: Any = channel.unary_unary(f"/{SERVICE}/{method}")
    return call.future(message, timeout=patience_s())
