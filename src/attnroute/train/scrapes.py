"""One scrape of one service: what all its sidecars' calls of a few seconds add up to, by name."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from attnroute.features.table import Array, Cells, Index
from attnroute.features.window import BUCKETS
from attnroute.telemetry.increases import CELL_COLUMNS, Increases

__all__ = ["Scrape", "decode", "encode", "merged", "scrapes_of"]

_TEXTS = ("service", "classes", "endpoints", "labels", "at_s", "length_s")


@dataclass(frozen=True)
class Scrape:
    """C classes, E endpoints, n cells with calls; float64, seconds, NaN where unknown."""

    service: str
    at_s: float
    """Its end, on any clock that does not go back."""
    length_s: float
    classes: tuple[str, ...]
    endpoints: tuple[str, ...]
    labels: tuple[Mapping[str, str], ...]
    """[E]; the zone under `zone`."""
    started_s: Array
    """[E], incarnations, 0 where unknown."""
    rtt_s: Array
    concurrency: Array
    """As reported."""
    utilization: Array
    """Mean of the reports; the page for training does not have it."""
    inflight: Array
    """[E], mean calls in the endpoint."""
    cells: Cells
    errors: Array
    """[n]."""
    buckets: Array
    """[C, BUCKETS]: successes by latency; a class without whole buckets has none."""


def scrapes_of(increases: Increases, at_s: float) -> list[Scrape]:
    """What went up since the last look as one scrape a service; [] where nothing is known of how
    long that was."""
    if increases.span_s <= 0:
        return []
    services = sorted({key[0] for key in increases.cells} | {key[0] for key in increases.info})
    return [_scrape(increases, service, at_s) for service in services]


def _scrape(increases: Increases, service: str, at_s: float) -> Scrape:
    found = {key[1:]: cell for key, cell in increases.cells.items() if key[0] == service}
    classes = sorted({name for name, _ in found})
    addresses = {address for _, address in found}
    addresses |= {key[1] for key in increases.info if key[0] == service}
    endpoints = sorted(addresses)
    rows = {name: row for row, name in enumerate(classes)}
    columns = {name: column for column, name in enumerate(endpoints)}
    values = np.array(list(found.values())).reshape(-1, len(CELL_COLUMNS))
    latency_s, calls, service_s, samples, estimated_s, errors = values.T
    info = [increases.info.get((service, one), ("", "", "")) for one in endpoints]

    def of(known: Mapping[tuple[str, str], float], missing: float) -> Array:
        return np.array([known.get((service, one), missing) for one in endpoints])

    return Scrape(
        service=service,
        at_s=at_s,
        length_s=increases.span_s,
        classes=tuple(classes),
        endpoints=tuple(endpoints),
        labels=tuple(_labels(zone, text) for zone, _, text in info),
        started_s=np.array([_number(started) for _, started, _ in info]),
        rtt_s=of(increases.rtt_s, np.nan),
        concurrency=of(increases.concurrency, np.nan),
        utilization=np.full(len(endpoints), np.nan),
        inflight=of(increases.inflight_s, 0.0) / increases.span_s,
        cells=Cells(
            request_class=np.array([rows[one] for one, _ in found], dtype=np.intp),
            endpoint=np.array([columns[one] for _, one in found], dtype=np.intp),
            calls=calls,
            latency_s=latency_s,
            service_samples=samples,
            service_s=service_s,
            estimated_s=estimated_s,
        ),
        errors=errors,
        buckets=np.array(
            [increases.buckets.get((service, name), np.zeros(BUCKETS)) for name in classes]
        ).reshape(-1, BUCKETS),
    )


def _labels(zone: str, text: str) -> Mapping[str, str]:
    pairs = (part.partition("=") for part in text.split(",") if part)
    labels = {key: value for key, _, value in pairs}
    return labels | {"zone": zone} if zone else labels


def _number(text: str) -> float:
    try:
        return float(text) if text else 0.0
    except ValueError:
        return 0.0


def encode(scrape: Scrape) -> bytes:
    """A scrape as bytes: an archive of arrays, as numpy writes it, and JSON for the names."""
    texts = {name: getattr(scrape, name) for name in _TEXTS}
    arrays = {
        one.name: getattr(scrape, one.name)
        for one in fields(scrape)
        if one.name not in (*_TEXTS, "cells")
    }
    arrays |= {f"cells.{one.name}": getattr(scrape.cells, one.name) for one in fields(Cells)}
    document = json.dumps(texts, default=dict).encode()
    arrays["texts"] = np.frombuffer(document, dtype=np.uint8)
    into = io.BytesIO()
    np.savez(into, allow_pickle=False, **arrays)
    return into.getvalue()


def decode(data: bytes) -> Scrape:
    """The scrape that was encoded. Raises ValueError or KeyError for anything else."""
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        arrays: dict[str, npt.NDArray[np.float64]] = {name: found[name] for name in found.files}
    texts = json.loads(arrays.pop("texts").tobytes())
    cells: dict[str, Index | Array] = {
        name.removeprefix("cells."): arrays.pop(name)
        for name in list(arrays)
        if name.startswith("cells.")
    }
    for name in ("classes", "endpoints", "labels"):
        texts[name] = tuple(texts[name])
    return Scrape(**texts, **arrays, cells=Cells(**cells))  # type: ignore[arg-type]


def merged(parts: list[Scrape]) -> Scrape:
    """Scrapes that follow each other as one. At least one."""
    classes = list(dict.fromkeys(name for part in parts for name in part.classes))
    rows = {name: row for row, name in enumerate(classes)}
    last = parts[-1]
    columns = {name: column for column, name in enumerate(last.endpoints)}
    length_s = sum(part.length_s for part in parts)
    buckets = np.zeros((len(classes), BUCKETS))
    inflight = np.zeros(len(last.endpoints))
    at_class, at_endpoint, keep = [], [], []
    for part in parts:
        row = np.array([rows[name] for name in part.classes], dtype=np.intp)
        column = np.array([columns.get(name, -1) for name in part.endpoints], dtype=np.intp)
        np.add.at(buckets, row, part.buckets)
        here = column >= 0
        inflight[column[here]] += part.inflight[here] * part.length_s / length_s
        at_class.append(row[part.cells.request_class])
        at_endpoint.append(column[part.cells.endpoint])
        keep.append(column[part.cells.endpoint] >= 0)

    def joined(name: str) -> Array:
        return np.concatenate([getattr(part.cells, name) for part in parts])

    cells = Cells(
        np.concatenate(at_class),
        np.concatenate(at_endpoint),
        *(joined(one.name) for one in fields(Cells)[2:]),
    )
    kept = np.concatenate(keep)
    return Scrape(
        service=last.service,
        at_s=last.at_s,
        length_s=length_s,
        classes=tuple(classes),
        endpoints=last.endpoints,
        labels=last.labels,
        started_s=last.started_s,
        rtt_s=last.rtt_s,
        concurrency=last.concurrency,
        utilization=last.utilization,
        inflight=inflight,
        cells=cells.only(kept),
        errors=np.concatenate([part.errors for part in parts])[kept],
        buckets=buckets,
    )
