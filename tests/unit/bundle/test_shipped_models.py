"""What the repository ships is what this build takes: bundles in models/, whole and small."""

from __future__ import annotations

from pathlib import Path

from attnroute.bundle import read
from attnroute.features.schema import schema_hash
from attnroute.registry.store import Store

ROOT = Path(__file__).resolve().parents[3]
BYTES_MAX = 2_000_000


def test_the_default_model_is_taken_by_this_build() -> None:
    store = Store(ROOT / "models")
    names = [entry.name for entry in (ROOT / "models").iterdir() if entry.is_dir()]
    assert sorted(store.names()) == sorted(names)
    assert "default" in names, "make it as docs/model.md says"
    for name in names:
        versions = [entry.name for entry in (ROOT / "models" / name).iterdir() if entry.is_dir()]
        assert sorted(store.versions(name)) == sorted(versions)
        assert versions
        for version in versions:
            listed = store.listed(name, version)
            assert sum(entry.size_bytes for entry in listed.files.values()) < BYTES_MAX
            bundle = read(store.path(name, version), expected_schema=schema_hash())
            assert bundle.manifest.trained["command"]
            assert str(bundle.manifest.trained["command"]) in bundle.card
