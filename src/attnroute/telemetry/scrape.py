"""Pages of sidecars, scraped directly: the source of training that needs no other server.

Read by the official parser. A page with a line that it cannot read is read line by line, so that a
bad line loses only itself, counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from attnroute.telemetry.fetch import Fetcher, FetchError
from attnroute.telemetry.increases import Page, Sample

__all__ = ["ACCEPT", "PATH", "DirectSource", "parse_page"]

PATH = "/metrics/training"
ACCEPT = "text/plain;version=0.0.4"


class DirectSource:
    """Scrapes every sidecar. addresses: asked each time for `host:port` of their HTTP pages."""

    name = "scrape"

    def __init__(
        self,
        addresses: Callable[[], Sequence[str]],
        fetcher: Fetcher,
        now_s: Callable[[], float],
    ) -> None:
        self._addresses = addresses
        self._fetcher = fetcher
        self._now_s = now_s

    async def pages(self) -> tuple[list[Page], Mapping[str, int]]:
        """The pages of those that answered, and how often what went wrong, by reason."""
        failures: dict[str, int] = {}
        answers = await asyncio.gather(
            *(self._one(address, failures) for address in self._addresses())
        )
        return [page for page in answers if page is not None], failures

    async def _one(self, address: str, failures: dict[str, int]) -> Page | None:
        try:
            body = await self._fetcher.fetch(f"http://{address}{PATH}", accept=ACCEPT)
        except FetchError as error:
            failures[error.reason] = failures.get(error.reason, 0) + 1
            return None
        # Received now: what a page says of its own time is not believed.
        at_s = self._now_s()
        samples, bad_lines = await asyncio.to_thread(parse_page, body)
        if bad_lines:
            failures["line"] = failures.get("line", 0) + bad_lines
        return Page(address, at_s, samples)

    async def close(self) -> None:
        """Ends the connections."""
        await self._fetcher.close()


def parse_page(body: bytes) -> tuple[list[Sample], int]:
    """The samples of a page in format 0.0.4, and how many lines could not be read."""
    text = body.decode(errors="replace").replace("\r\n", "\n")
    try:
        return list(_samples([text])), 0
    except (ValueError, KeyError, IndexError):
        # The parser says nothing about where it stopped, and what it raises differs.
        pass
    samples: list[Sample] = []
    bad = 0
    for line in text.split("\n"):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        try:
            samples.extend(_samples([stripped + "\n"]))
        except (ValueError, KeyError, IndexError):
            bad += 1
    return samples, bad


def _samples(texts: Iterable[str]) -> Iterable[Sample]:
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield Sample(sample.name, sample.labels, sample.value)
