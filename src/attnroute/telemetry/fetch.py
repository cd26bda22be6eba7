"""One HTTP request for a machine's data, with every limit that a stranger's answer needs.

The time is that of the whole answer, so that a slow drip ends, too; the size is that of the
unpacked body, so that a small packed one cannot be a large one. What may pass by itself is tried
again a few times. Credentials come from files, read anew for each request, as they are rotated.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2

__all__ = ["Credentials", "FetchError", "FetchLimits", "Fetcher", "TlsFiles"]

_CHUNK_BYTES = 64 << 10


class FetchError(Exception):
    """reason: `connect`, `timeout`, `status`, `too_large`, `credentials` or `protocol`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class FetchLimits:
    """For each try. retries: further tries of what may pass by itself."""

    timeout_s: float
    body_bytes: int
    retries: int = 2
    pause_s: float = 0.2
    """Before the second try, doubled for each further one, drawn from 80 to 120 %."""


@dataclass(frozen=True)
class Credentials:
    """Who asks: by a token, or by name and password; files with one line each."""

    bearer_token_file: Path | None = None
    username: str = ""
    password_file: Path | None = None


@dataclass(frozen=True)
class TlsFiles:
    """PEM files. Without `ca` the system's roots count."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


class Fetcher:
    """A client of one server; an async context manager. transport: in its place for tests."""

    def __init__(
        self,
        limits: FetchLimits,
        *,
        credentials: Credentials = Credentials(),
        tls: TlsFiles | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._limits = limits
        self._credentials = credentials
        self._rng = random.Random() if rng is None else rng
        self._client = httpx2.AsyncClient(
            verify=ssl_context(tls) if tls is not None else True,
            timeout=limits.timeout_s,
            # A proxy of the environment is for the outside world.
            trust_env=False,
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connections."""
        await self._client.aclose()

    async def fetch(self, url: str, *, accept: str, form: Mapping[str, str] | None = None) -> bytes:
        """The body of a 2xx answer; POST where there is a form. Raises FetchError."""
        pause_s = self._limits.pause_s
        for attempt in range(self._limits.retries + 1):
            try:
                return await self._once(url, accept, form)
            except FetchError as error:
                last = attempt == self._limits.retries
                if last or error.reason in ("too_large", "credentials", "refused"):
                    raise
            await asyncio.sleep(pause_s * self._rng.uniform(0.8, 1.2))
            pause_s *= 2
        raise AssertionError("unreachable: the last try returns or raises")

    async def _once(self, url: str, accept: str, form: Mapping[str, str] | None) -> bytes:
        headers = {"Accept": accept, "Accept-Encoding": "gzip"} | self._authorization()
        method = "GET" if form is None else "POST"
        try:
            async with (
                asyncio.timeout(self._limits.timeout_s),
                self._client.stream(
                    method, url, headers=headers, data=dict(form) if form else None,
                    auth=self._basic(),
                ) as answer,
            ):  # fmt: skip
                body = await self._body(answer, url)
        except TimeoutError as error:
            raise FetchError(
                "timeout", f"`{url}` took longer than `{self._limits.timeout_s:g}` s"
            ) from error
        except httpx2.TimeoutException as error:
            raise FetchError("timeout", f"`{url}`: {type(error).__name__}") from error
        except httpx2.TransportError as error:
            raise FetchError("connect", f"`{url}`: {str(error) or type(error).__name__}") from error
        except httpx2.HTTPError as error:
            raise FetchError(
                "protocol", f"`{url}`: {str(error) or type(error).__name__}"
            ) from error
        if not answer.is_success:
            # What the server does not want it will not want in a moment either.
            again = answer.status_code >= 500 or answer.status_code in (408, 429)
            text = body[:200].decode(errors="replace").strip()
            raise FetchError(
                "status" if again else "refused", f"`{url}` answered {answer.status_code}: {text}"
            )
        return body

    async def _body(self, answer: httpx2.Response, url: str) -> bytes:
        parts, size = [], 0
        async for part in answer.aiter_bytes(_CHUNK_BYTES):
            size += len(part)
            if size > self._limits.body_bytes:
                raise FetchError(
                    "too_large", f"`{url}` answered more than {self._limits.body_bytes} bytes"
                )
            parts.append(part)
        return b"".join(parts)

    def _authorization(self) -> dict[str, str]:
        file = self._credentials.bearer_token_file
        return {} if file is None else {"Authorization": f"Bearer {_secret(file)}"}

    def _basic(self) -> tuple[str, str] | None:
        file = self._credentials.password_file
        return None if file is None else (self._credentials.username, _secret(file))


def _secret(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FetchError("credentials", f"`{file}` cannot be read: {error}") from error


def ssl_context(files: TlsFiles) -> ssl.SSLContext:
    """Raises OSError or ssl.SSLError for files that are none."""
    context = ssl.create_default_context(cafile=files.ca)
    if files.certificate is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context
