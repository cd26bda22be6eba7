"""A bundle that is read is the one that was written, and one that is wrong says in which way."""

from __future__ import annotations

import hashlib
import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.support.bundles import SCHEMA, graph_bytes, make_bundle, probe

from attnroute.bundle import Bundle, BundleLimits, describe, read, write
from attnroute.bundle.graph import GraphError, read_graph
from attnroute.bundle.manifest import parse_version
from attnroute.bundle.signature import load_public_key, load_signing_key, write_key_pair
from attnroute.errors import BundleError


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads((path / "manifest.json").read_text())
    change(document)
    (path / "manifest.json").write_text(json.dumps(document))


def replace_file(path: Path, name: str, data: bytes) -> None:
    """Another file, which the manifest knows of: only its content is wrong."""
    (path / name).write_bytes(data)

    def entry(document: dict[str, Any]) -> None:
        document["files"][name] = {
            "size_bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }

    rewrite(path, entry)


def refused(path: Path, words: str, **options: Any) -> None:
    with pytest.raises(BundleError) as caught:
        read(path, **{"expected_schema": SCHEMA, **options})
    message = str(caught.value)
    assert message.startswith(f"{path}: "), message
    assert words in message, message
    assert "\n" not in message


def test_there_and_back(tmp_path: Path) -> None:
    bundle = make_bundle("1.2.3", seed=7)
    path = write(tmp_path, bundle)
    assert path == tmp_path / "default" / "1.2.3"
    again = read(path, expected_schema=SCHEMA)
    assert again.manifest == bundle.manifest
    assert again.graphs == bundle.graphs
    assert again.card == bundle.card
    for name, array in {**bundle.probe.inputs, **bundle.probe.outputs}.items():
        found = {**again.probe.inputs, **again.probe.outputs}[name]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, array)


def test_the_same_bundle_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = (write(tmp_path / place, make_bundle()) for place in ("a", "b"))
    assert describe(one).sha256 == describe(two).sha256


def test_any_schema_where_none_is_expected(tmp_path: Path) -> None:
    path = write(tmp_path, make_bundle(schema="other"))
    assert read(path, expected_schema=None).manifest.feature_schema == "other"
    refused(path, f"made for feature schema `other`, this build has `{SCHEMA[:16]}`; train")


def test_a_small_flavour_travels_along(tmp_path: Path) -> None:
    bundle = make_bundle()
    graphs = {**bundle.graphs, "score.int8.onnx": bundle.graphs["score.onnx"]}
    path = write(tmp_path, replace(bundle, graphs=graphs))
    assert read(path, expected_schema=SCHEMA).graphs == graphs


@pytest.mark.parametrize(
    ("bundle", "words"),
    [
        (make_bundle("1.0"), "found version `1.0`, expected three numbers such as `1.4.0`"),
        (make_bundle("1.0.0-rc1"), "expected three numbers"),
        (make_bundle(name="../x"), "found name `../x`, expected"),
        (make_bundle(name="Default"), "found name `Default`"),
        (replace(make_bundle(), graphs={}), "it has the graphs none, expected encode_endp"),
        (
            replace(make_bundle(), graphs={**graph_bytes(), "../../x.onnx": b""}),
            "it has the graphs ../../x.onnx",
        ),
        (replace(make_bundle(), probe=replace(probe(), outputs={})), "its probe has"),
        (
            replace(
                make_bundle(),
                manifest=replace(make_bundle().manifest, metrics={"gain": float("nan")}),
            ),
            "its manifest cannot be written as JSON",
        ),
    ],
)
def test_what_cannot_be_read_is_not_written(tmp_path: Path, bundle: Bundle, words: str) -> None:
    with pytest.raises(BundleError) as caught:
        write(tmp_path, bundle)
    assert words in str(caught.value)
    assert list(tmp_path.rglob("*.json")) == []


def renamed_output(graph: onnx.GraphProto) -> None:
    graph.output[0].name = "latency"
    graph.node[-6].output[0] = "latency"


def extra_output(graph: onnx.GraphProto) -> None:
    graph.output.append(graph.output[0])
    graph.output[-1].name = "nothing"


def extra_input(graph: onnx.GraphProto) -> None:
    graph.input.append(graph.input[0])
    graph.input[-1].name = "weather"


def external_weights(graph: onnx.GraphProto) -> None:
    graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    entry = graph.initializer[0].external_data.add()
    entry.key, entry.value = "location", "/etc/hostname"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (renamed_output, "`score.onnx` has the outputs `latency`, `spread`, `probability`, exp"),
        (extra_output, "`cost_s`, `spread`, `probability`, `nothing`, expected `cost_s`"),
        (extra_input, "`mask`, `weather`, expected"),
        (external_weights, "weights of `score.onnx` lie in other files; export with"),
    ],
)
def test_graphs_of_another_shape(
    tmp_path: Path, change: Callable[[onnx.GraphProto], None], words: str
) -> None:
    path = write(tmp_path, make_bundle())
    model = onnx.load_from_string((path / "score.onnx").read_bytes())
    change(model.graph)
    replace_file(path, "score.onnx", model.SerializeToString())
    refused(path, words)


def test_another_opset(tmp_path: Path) -> None:
    path = write(tmp_path, make_bundle(opset=19))
    refused(path, "has opset 19, the manifest says 19, this build accepts 20; export with")
    path = write(tmp_path, make_bundle("1.0.1"))
    replace_file(path, "score.onnx", graph_bytes(opset=19)["score.onnx"])
    refused(path, "`score.onnx` has opset 19, the manifest says 20")


@pytest.mark.parametrize(
    "data", [b"", b"\x00", b"PK\x03\x04", b"\x3a\xff\xff\xff\xff\x0f", b"\x80" * 20]
)
def test_bytes_that_are_no_graph(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path, make_bundle())
    replace_file(path, "encode_classes.onnx", data)
    refused(path, "`encode_classes.onnx` is no ONNX model: ")


def test_every_beginning_of_a_graph_is_read_or_refused() -> None:
    data = graph_bytes()["encode_endpoints.onnx"]
    for end in range(len(data)):
        try:
            graph = read_graph(data[:end])
        except GraphError:
            continue
        # What comes last, the operator set, may be missing at a border of fields.
        assert graph.opset in (0, 20)


def bad_zip(path: Path) -> None:
    replace_file(path, "probe.npz", b"PK\x05\x06" + b"\0" * 18)


def pickled(path: Path) -> None:
    target = path / "evil.npz"
    np.savez(target, objects=np.array([{"a": 1}], dtype=object))
    replace_file(path, "probe.npz", target.read_bytes())


def inflated(path: Path) -> None:
    target = path / "bomb.npz"
    np.savez_compressed(target, zeros=np.zeros(10_000_000, np.float32))
    replace_file(path, "probe.npz", target.read_bytes())


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (bad_zip, "`probe.npz` holds none, expected `input.endpoint`"),
        (pickled, "Object arrays cannot be loaded"),
        (inflated, "it has more than 1048576 bytes unpacked"),
    ],
)
def test_probes_that_are_none(tmp_path: Path, damage: Callable[[Path], None], words: str) -> None:
    path = write(tmp_path, make_bundle())
    damage(path)
    refused(path, words, limits=BundleLimits(bytes=1 << 20))


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("mask", np.ones(5, np.float32), "`mask` has the shape (5,), expected (4,)"),
        ("pair", np.ones((3, 4), np.float32), "`pair` has the shape (3, 4), expected (3, 4) and"),
        ("rtt_s", np.ones(4), "`rtt_s` is of `float64`, expected float32"),
        ("endpoint", np.ones(4, np.float32), "need two dimensions"),
    ],
)
def test_probes_of_another_shape(tmp_path: Path, name: str, array: Any, words: str) -> None:
    good = probe()
    bad = replace(good, inputs={**good.inputs, name: array})
    refused(write(tmp_path, replace(make_bundle(), probe=bad)), words)


def test_a_probe_without_an_answer(tmp_path: Path) -> None:
    good = probe()
    cost_s = np.full((3, 4), np.nan, np.float32)
    bad = replace(good, outputs={**good.outputs, "cost_s": cost_s})
    refused(write(tmp_path, replace(make_bundle(), probe=bad)), "an output is not finite")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "`manifest.json` is no JSON ("),
        ("[" * 100_000, "`manifest.json` is no JSON ("),
        ("[]", "is no JSON object"),
        ("{}", "has format `None`, this build reads 1"),
        ('{"format": 2}', "has format `2`, this build reads 1; use an attnroute of the version"),
        ('{"format": 1, "x": NaN}', "`NaN` is no number"),
        ('{"format": 1}', "`name` is `None`, expected a name such as `default`"),
    ],
)
def test_manifests_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, make_bundle())
    (path / "manifest.json").write_text(text)
    refused(path, words)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("version", "1.4", "found version `1.4`"),
        ("version", 1, "`version` is `1`, expected a version such as `1.4.0`"),
        ("opset", True, "`opset` is `True`, expected a whole number"),
        ("tolerance", -1, "`tolerance` is `-1`, expected a number, at least 0"),
        ("created_s", 10**400, "`created_s` is"),
        ("metrics", {"gain": "much"}, "`gain` is `much`, expected a number"),
        ("trained", [], "`trained` is `[]`, expected an object"),
        ("files", {}, "it lists the files none, expected `card.md`"),
    ],
)
def test_manifests_that_say_something_wrong(
    tmp_path: Path, key: str, value: object, words: str
) -> None:
    path = write(tmp_path, make_bundle())
    rewrite(path, lambda document: document.update({key: value}))
    refused(path, words)


def test_no_file_outside_the_directory(tmp_path: Path) -> None:
    path = write(tmp_path, make_bundle())
    (tmp_path / "secret").write_bytes(b"x")

    def change(document: dict[str, Any]) -> None:
        document["files"]["../../secret"] = document["files"]["card.md"]

    rewrite(path, change)
    refused(path, "it lists the files `../../secret`")


def test_the_limit_of_bytes(tmp_path: Path) -> None:
    path = write(tmp_path, make_bundle())
    total = sum(entry.size_bytes for entry in describe(path).files.values())
    read(path, expected_schema=SCHEMA, limits=BundleLimits(bytes=total))
    refused(
        path,
        f"its files have {total} bytes, at most {total - 1} are allowed; raise `max_bytes`",
        limits=BundleLimits(bytes=total - 1),
    )


class TestSignatures:
    def test_signed_and_read(self, tmp_path: Path) -> None:
        public = load_public_key(write_key_pair(tmp_path / "key"))
        signing = load_signing_key(tmp_path / "key")
        path = write(tmp_path, make_bundle(), key=signing)
        assert read(path, expected_schema=SCHEMA, key=public).manifest.version == "1.0.0"
        # Who configures no key takes it too.
        read(path, expected_schema=SCHEMA)

    def test_the_private_half_is_nobody_elses(self, tmp_path: Path) -> None:
        write_key_pair(tmp_path / "key")
        assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
        with pytest.raises(BundleError, match="cannot be made: File exists"):
            write_key_pair(tmp_path / "key")

    def test_not_signed(self, tmp_path: Path) -> None:
        public = load_public_key(write_key_pair(tmp_path / "key"))
        path = write(tmp_path, make_bundle())
        refused(path, "it has no `manifest.sig`, and a public key is configured; sign", key=public)

    def test_signed_by_somebody_else(self, tmp_path: Path) -> None:
        public = load_public_key(write_key_pair(tmp_path / "ours"))
        write_key_pair(tmp_path / "theirs")
        path = write(tmp_path, make_bundle(), key=load_signing_key(tmp_path / "theirs"))
        refused(path, "was not made for this `manifest.json` with the configured key", key=public)

    def test_a_signature_of_another_manifest(self, tmp_path: Path) -> None:
        public = load_public_key(write_key_pair(tmp_path / "key"))
        signing = load_signing_key(tmp_path / "key")
        one = write(tmp_path, make_bundle("1.0.0"), key=signing)
        two = write(tmp_path, make_bundle("1.0.1"), key=signing)
        shutil.copy(one / "manifest.sig", two / "manifest.sig")
        refused(two, "was not made for this", key=public)
        (two / "manifest.sig").write_bytes(b"not base64 \xff")
        refused(two, "was not made for this", key=public)

    def test_who_can_write_files_but_not_sign(self, tmp_path: Path) -> None:
        """The hashes of the manifest follow a changed graph; the signature does not."""
        public = load_public_key(write_key_pair(tmp_path / "key"))
        path = write(tmp_path, make_bundle(), key=load_signing_key(tmp_path / "key"))
        replace_file(path, "score.onnx", graph_bytes(seed=9)["score.onnx"])
        read(path, expected_schema=SCHEMA)
        refused(path, "was not made for this", key=public)

    def test_keys_that_are_none(self, tmp_path: Path) -> None:
        public = write_key_pair(tmp_path / "key")
        with pytest.raises(BundleError, match="holds no private ed25519 key"):
            load_signing_key(public)
        with pytest.raises(BundleError, match="holds no public ed25519 key"):
            load_public_key(tmp_path / "key")
        with pytest.raises(BundleError, match="cannot be opened: No such file"):
            load_public_key(tmp_path / "nothing")


@pytest.mark.parametrize(
    "text", ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.3\n", "1.-2.3", "٣.1.1"]
)
def test_versions_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected three numbers"):
        parse_version(text)


def test_versions_are_numbers() -> None:
    assert parse_version("1.10.0") > parse_version("1.9.9")
