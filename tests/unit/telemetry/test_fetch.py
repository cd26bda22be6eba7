"""Answers of strangers: slow, large, refused, unreachable, behind TLS and passwords."""

from __future__ import annotations

import asyncio
import base64
import gzip
import random
import socket
import ssl
from pathlib import Path

import pytest
import trustme
from tests.support.http_server import Request, http_peer, page
from tests.support.wait import patience_s

from attnroute.telemetry.fetch import (
    Credentials,
    Fetcher,
    FetchError,
    FetchLimits,
    TlsFiles,
    ssl_context,
)


def limits(
    *, timeout_s: float | None = None, body_bytes: int = 1 << 20, retries: int = 0
) -> FetchLimits:
    return FetchLimits(
        patience_s() if timeout_s is None else timeout_s, body_bytes, retries, pause_s=0.001
    )


async def fetch(fetcher: Fetcher, address: str, scheme: str = "http") -> bytes:
    return await fetcher.fetch(f"{scheme}://{address}/a", accept="text/plain")


async def refused(fetcher: Fetcher, address: str, scheme: str = "http") -> str:
    with pytest.raises(FetchError) as failure:
        await fetch(fetcher, address, scheme)
    return failure.value.reason


async def test_a_good_answer() -> None:
    async with http_peer(page(b"hello")) as peer, Fetcher(limits()) as fetcher:
        assert await fetch(fetcher, peer.address) == b"hello"
        assert await fetch(fetcher, peer.address) == b"hello"
    asked = peer.requests[0]
    assert (asked.method, asked.path, asked.headers["accept"]) == ("GET", "/a", "text/plain")


async def test_a_packed_answer_and_one_that_unpacks_to_too_much() -> None:
    packed = page(gzip.compress(b"hello"), Content_Encoding="gzip")
    async with http_peer(packed) as peer, Fetcher(limits(body_bytes=100_000)) as fetcher:
        assert await fetch(fetcher, peer.address) == b"hello"
        peer.answer = page(gzip.compress(bytes(10_000_000)), Content_Encoding="gzip")
        assert await refused(fetcher, peer.address) == "too_large"
        peer.answer = page(bytes(100_001))
        assert await refused(fetcher, peer.address) == "too_large"
        peer.answer = page(b"no gzip", Content_Encoding="gzip")
        assert await refused(fetcher, peer.address) == "protocol"
        peer.answer = page(bytes(100_000))
        assert len(await fetch(fetcher, peer.address)) == 100_000


async def test_a_slow_drip_ends() -> None:
    async def drip(_request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with http_peer(drip) as peer, Fetcher(limits(timeout_s=0.3)) as fetcher:
        assert await refused(fetcher, peer.address) == "timeout"


async def test_what_may_pass_is_tried_again() -> None:
    answers = [
        page(b"busy", status="503 Busy"),
        page(b"slow down", status="429 Too Many Requests"),
        page(b"hello"),
    ]

    async def next_one(request: Request, writer: asyncio.StreamWriter) -> None:
        await answers.pop(0)(request, writer)

    async with http_peer(next_one) as peer:
        async with Fetcher(limits(retries=2), rng=random.Random(1)) as fetcher:
            assert await fetch(fetcher, peer.address) == b"hello"
        assert len(peer.requests) == 3
        peer.answer = page(b"busy", status="500 Internal Server Error")
        async with Fetcher(limits(retries=1)) as fetcher:
            assert await refused(fetcher, peer.address) == "status"
        assert len(peer.requests) == 5


@pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "404 Not Found"])
async def test_a_refusal_is_not_tried_again(status: str) -> None:
    async with (
        http_peer(page(b"no\n", status=status)) as peer,
        Fetcher(limits(retries=3)) as fetcher,
    ):
        with pytest.raises(FetchError, match=f"answered {status[:3]}: no$"):
            await fetch(fetcher, peer.address)
    assert len(peer.requests) == 1


async def test_a_redirect_is_not_followed() -> None:
    away = page(b"", status="302 Found", Location="http://127.0.0.1:1/")
    async with http_peer(away) as peer, Fetcher(limits()) as fetcher:
        assert await refused(fetcher, peer.address) == "refused"


async def test_nobody_there() -> None:
    with socket.socket() as reserved:  # bound and not listening: nobody else gets it
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        async with Fetcher(limits(retries=1)) as fetcher:
            assert await refused(fetcher, address) == "connect"


async def test_credentials_are_read_for_each_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    bearer = Credentials(bearer_token_file=token)
    async with http_peer(page(b"")) as peer:
        async with Fetcher(limits(), credentials=bearer) as fetcher:
            await fetch(fetcher, peer.address)
            token.write_text("two")
            await fetch(fetcher, peer.address)
            token.unlink()
            assert await refused(fetcher, peer.address) == "credentials"
        token.write_text("pa:ss\n")
        basic = Credentials(username="me", password_file=token)
        async with Fetcher(limits(), credentials=basic) as fetcher:
            await fetch(fetcher, peer.address)
    sent = [one.headers["authorization"] for one in peer.requests]
    assert sent == ["Bearer one", "Bearer two", "Basic " + base64.b64encode(b"me:pa:ss").decode()]


async def test_tls_knows_its_server_and_shows_who_asks(tmp_path: Path) -> None:
    ca, other = trustme.CA(), trustme.CA()
    roots, wrong, own = tmp_path / "ca.pem", tmp_path / "other.pem", tmp_path / "own.pem"
    ca.cert_pem.write_to_path(roots)
    other.cert_pem.write_to_path(wrong)
    client = ca.issue_cert("trainer.example")
    own.write_bytes(client.private_key_and_cert_chain_pem.bytes())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("127.0.0.1").configure_cert(server)
    async with http_peer(page(b"hello"), server) as peer:
        async with Fetcher(limits(), tls=TlsFiles(roots)) as fetcher:
            assert await fetch(fetcher, peer.address, "https") == b"hello"
        for tls in (TlsFiles(wrong), TlsFiles(), None):
            async with Fetcher(limits(), tls=tls) as fetcher:
                assert await refused(fetcher, peer.address, "https") == "connect"
    server.verify_mode = ssl.CERT_REQUIRED
    ca.configure_trust(server)
    async with http_peer(page(b"hello"), server) as peer:
        async with Fetcher(limits(), tls=TlsFiles(roots, own)) as fetcher:
            assert await fetch(fetcher, peer.address, "https") == b"hello"
        async with Fetcher(limits(), tls=TlsFiles(roots)) as fetcher:
            assert await refused(fetcher, peer.address, "https") == "connect"
    with pytest.raises(OSError, match="No such file"):
        ssl_context(TlsFiles(tmp_path / "none.pem"))
