"""Exported graphs for tests that need some and do not test the exporter, which takes most of a
minute: kept between runs under the hash of everything that they come from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from attnroute.bundle import GRAPHS
from attnroute.features.schema import schema_hash
from attnroute.model import export, network
from attnroute.model.export import export_graphs
from attnroute.model.network import Router

ROOT = Path(__file__).resolve().parents[2]


def exported() -> dict[str, bytes]:
    """The graphs of a router as it is now."""
    sources = b"".join(Path(one.__file__ or "").read_bytes() for one in (export, network))
    key = hashlib.sha256(sources + schema_hash().encode() + torch.__version__.encode()).hexdigest()
    place = ROOT / ".cache" / "test-graphs" / key[:16]
    if not (place / "done").exists():
        place.mkdir(parents=True, exist_ok=True)
        for name, graph in export_graphs(Router()).items():
            (place / name).write_bytes(graph)
        (place / "done").touch()
    return {name: (place / name).read_bytes() for name in GRAPHS}
