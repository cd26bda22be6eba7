"""Bundles on their way from a registry, or a directory, to a sidecar; and what may happen to them
there."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from tests.support.bundles import SCHEMA, make_bundle, version
from tests.support.registry import FAST, BadLine, Events, Follower, following, registry
from tests.support.wait import patiently, until

from attnroute._proto.registry.v1 import registry_pb2 as pb
from attnroute.bundle import Bundle, BundleLimits
from attnroute.bundle.signature import load_public_key, load_signing_key, write_key_pair
from attnroute.registry.client import DirectorySource, RegistrySource, Trust
from attnroute.registry.messages import MessageError, read_channel, read_listing
from attnroute.registry.remote import RemoteRegistry
from attnroute.registry.store import Store

TRUST = Trust(SCHEMA)


def heavy_bundle(number: int, *, size: int = 900_000) -> Bundle:
    """A bundle of some megabytes, so that a fetch has several parts: its card is long."""
    noise = random.Random(number).randbytes(size).hex()
    return replace(make_bundle(version(number), seed=number), card=noise)


def publish(store: Store, bundle: Bundle, channel: str = "stable", **options: Any) -> None:
    store.add(bundle, **options)
    now = store.channel("default", channel)
    store.point(
        "default",
        channel,
        bundle.manifest.version,
        expected_generation=now.generation,
        reason="test",
    )


@asynccontextmanager
async def sidecar(
    address: str, cache: Path, *, trust: Trust = TRUST, events: Events | None = None
) -> AsyncIterator[tuple[Follower, Events]]:
    counted = events or Events()
    source = RegistrySource(
        address, "default", "stable", trust, counted, cache=cache, patience=FAST,
        rng=random.Random(1),
    )  # fmt: skip
    async with following(source) as follower:
        yield follower, counted


async def test_a_sidecar_follows_its_channel(tmp_path: Path) -> None:
    async with (
        registry(tmp_path / "registry") as (store, address, _),
        sidecar(address, tmp_path / "cache") as (follower, events),
    ):
        await until(lambda: events.connected, "the first word of a channel that points nowhere")
        publish(store, make_bundle(version(0), seed=0))
        first = await follower.until(version(0))
        assert first.bundle.graphs == make_bundle(seed=0).graphs
        publish(store, make_bundle(version(1), seed=1))
        second = await follower.until(version(1))
        assert second.bundle.graphs != first.bundle.graphs
        assert second.state.generation == 2
        fetched = events.counts["fetched"]
        # Back to what is on the disk: nothing is fetched.
        store.point("default", "stable", version(0), expected_generation=2, reason="back")
        await follower.until(version(0))
        assert events.counts["fetched"] == fetched
        assert follower.versions == [version(0), version(1), version(0)]


async def test_several_sidecars_share_a_cache(tmp_path: Path) -> None:
    async with registry(tmp_path / "registry") as (store, address, _):
        publish(store, heavy_bundle(0))
        async with (
            sidecar(address, tmp_path / "cache") as (one, _),
            sidecar(address, tmp_path / "cache") as (two, _),
        ):
            await one.until(version(0))
            await two.until(version(0))
            publish(store, heavy_bundle(1))
            await one.until(version(1))
            await two.until(version(1))


async def test_a_directory_works_the_same(tmp_path: Path) -> None:
    store = Store(tmp_path)
    events = Events()
    source = DirectorySource(tmp_path, "default", "stable", TRUST, events, patience=FAST)
    async with following(source) as follower:
        publish(store, make_bundle(version(0)))
        await follower.until(version(0))
        publish(store, make_bundle(version(1)))
        await follower.until(version(1))
        # It is gone for a while, as a mount may be.
        (tmp_path / "default" / "channels" / "stable.json").write_text("{")
        await until(lambda: events.counts["directory"], "a failure that is counted")
        store.prepare("default")
        (tmp_path / "default" / "channels" / "stable.json").unlink()
        publish(store, make_bundle(version(2)))
        await follower.until(version(2))


async def test_a_directory_that_is_still_copied(tmp_path: Path) -> None:
    Store(tmp_path / "written").add(make_bundle(version(0)))
    events = Events()
    source = DirectorySource(tmp_path, "default", "stable", TRUST, events, patience=FAST)
    async with following(source) as follower:
        target = tmp_path / "default" / version(0)
        shutil.copytree(tmp_path / "written" / "default" / version(0), target)
        await follower.until(version(0))


class Stalling(Events):
    """Nothing passes the line any more once so many bytes were fetched."""

    def __init__(self, line: BadLine, after_bytes: int) -> None:
        super().__init__()
        self._line = line
        self._after_bytes = after_bytes

    def registry_fetched(self, fetched_bytes: int) -> None:
        before = self.counts["fetched"]
        super().registry_fetched(fetched_bytes)
        if before < self._after_bytes <= self.counts["fetched"]:
            self._line.hold.clear()


class TestBrokenFetches:
    async def test_it_goes_on_where_it_stopped(self, tmp_path: Path) -> None:
        async with registry(tmp_path / "registry") as (store, address, sent):
            publish(store, heavy_bundle(0))
            line = BadLine(address, cut_after=700_000)
            async with line.open(), sidecar(line.address, tmp_path / "cache") as (follower, events):
                update = await follower.until(version(0))
                assert update.bundle.card == heavy_bundle(0).card
                assert line.connections > 2
                assert events.counts["UNAVAILABLE"] > 1
                total = sum(
                    entry.size_bytes for entry in store.listed("default", version(0)).files.values()
                )
                # Begun anew each time it would never have come to its end; what a cut connection
                # had on its way comes twice.
                assert events.counts["fetched"] < 1.5 * total
                assert sent.counts["sent"] >= total

    async def test_the_registry_restarts_in_between(self, tmp_path: Path) -> None:
        address = f"unix:{tmp_path}/registry.sock"
        async with sidecar(address, tmp_path / "cache") as (follower, events):
            await until(lambda: events.counts["UNAVAILABLE"], "a registry that is not there")
            async with registry(tmp_path / "registry", address) as (store, _, _):
                publish(store, make_bundle(version(0)))
                await follower.until(version(0))
            await until(lambda: not events.connected, "the end of the watch")
            publish(store, make_bundle(version(1)))
            async with registry(tmp_path / "registry", address):
                await follower.until(version(1))

    async def test_a_start_without_the_registry(self, tmp_path: Path) -> None:
        address = f"unix:{tmp_path}/registry.sock"
        async with registry(tmp_path / "registry", address) as (store, _, _):
            publish(store, make_bundle(version(0)))
            async with sidecar(address, tmp_path / "cache") as (follower, _):
                await follower.until(version(0))
        async with sidecar(address, tmp_path / "cache") as (follower, events):
            update = await follower.until(version(0))
            assert update.bundle.graphs == make_bundle().graphs
            assert events.counts["fetched"] == 0

    async def test_a_cache_that_was_damaged(self, tmp_path: Path) -> None:
        async with registry(tmp_path / "registry") as (store, address, _):
            publish(store, make_bundle(version(0)))
            async with sidecar(address, tmp_path / "cache") as (follower, _):
                await follower.until(version(0))
            cached = tmp_path / "cache" / "default" / version(0)
            os.truncate(cached / "score.onnx", 10)
            async with sidecar(address, tmp_path / "cache") as (follower, events):
                update = await follower.until(version(0))
                assert update.bundle.graphs == make_bundle().graphs
                assert events.counts["fetched"] > 0

    async def test_a_slow_registry(self, tmp_path: Path) -> None:
        """It falls silent amid a file for longer than it is waited for; what came stays, what
        serves goes on."""
        async with registry(tmp_path / "registry") as (store, address, _):
            publish(store, make_bundle(version(0)))
            line = BadLine(address, chunk=16_384)
            events = Stalling(line, 500_000)
            async with line.open():
                source = RegistrySource(
                    line.address, "default", "stable", TRUST, events, cache=tmp_path / "cache",
                    patience=replace(FAST, message_s=0.2), rng=random.Random(1),
                )  # fmt: skip
                async with following(source) as follower:
                    await follower.until(version(0))
                    publish(store, heavy_bundle(1))
                    await until(lambda: events.counts["silent"] > 2, "silence that is counted")
                    assert follower.versions == [version(0)]
                    line.hold.set()
                    await follower.until(version(1))

    async def test_silence_ends_a_watch_that_has_not_begun(self, tmp_path: Path) -> None:
        async with registry(tmp_path / "registry") as (store, address, _):
            publish(store, make_bundle(version(0)))
            line = BadLine(address)
            events = Events()
            async with line.open():
                line.hold.clear()
                source = RegistrySource(
                    line.address, "default", "stable", TRUST, events, cache=tmp_path / "cache",
                    patience=replace(FAST, message_s=0.1), rng=random.Random(1),
                )  # fmt: skip
                async with following(source) as follower:
                    await until(lambda: events.counts["silent"] > 2, "silence that is counted")
                    assert follower.versions == []
                    line.hold.set()
                    await follower.until(version(0))


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("bundle", "words"),
        [
            (make_bundle(version(1), schema="another"), "made for feature schema `another`"),
            (make_bundle(version(1), opset=18), "has opset 18"),
            (heavy_bundle(1, size=3_000_000), "at most 2097152 are allowed; raise `max_bytes`"),
        ],
    )
    async def test_what_serves_goes_on(self, tmp_path: Path, bundle: Bundle, words: str) -> None:
        trust = Trust(SCHEMA, BundleLimits(bytes=2 << 20))
        async with (
            registry(tmp_path / "registry") as (store, address, _),
            sidecar(address, tmp_path / "cache", trust=trust) as (follower, events),
        ):
            publish(store, make_bundle(version(0)))
            await follower.until(version(0))
            publish(store, bundle)
            await until(lambda: events.refused, "a refusal")
            assert events.refused[0][0] == version(1)
            assert words in events.refused[0][1]
            assert follower.versions == [version(0)]
            publish(store, make_bundle(version(2)))
            await follower.until(version(2))
            assert len(events.refused) == 1
            # What was refused does not fill the disk.
            names = {path.name for path in (tmp_path / "cache" / "default").iterdir()}
            assert version(1) not in names

    async def test_signatures_are_enforced(self, tmp_path: Path) -> None:
        public = load_public_key(write_key_pair(tmp_path / "key"))
        signing = load_signing_key(tmp_path / "key")
        async with (
            registry(tmp_path / "registry") as (store, address, _),
            sidecar(address, tmp_path / "cache", trust=Trust(SCHEMA, key=public)) as (
                follower,
                events,
            ),
        ):
            publish(store, make_bundle(version(0)))
            await until(lambda: events.refused, "a refusal of what is not signed")
            assert "it has no `manifest.sig`" in events.refused[0][1]
            publish(store, make_bundle(version(1)), key=signing)
            await follower.until(version(1))
            assert follower.versions == [version(1)]

    async def test_a_registry_that_sends_something_else(self, tmp_path: Path) -> None:
        """The manifest's sha256 comes with the channel, so that what is fetched can be changed by
        nobody: it is asked for again, and again, until it is right."""
        async with registry(tmp_path / "registry") as (store, address, _):
            store.add(make_bundle(version(0)))
            path = store.path("default", version(0)) / "score.onnx"
            good = path.read_bytes()
            bad = bytearray(good)
            bad[100] ^= 1
            path.write_bytes(bytes(bad))
            store.point("default", "stable", version(0), expected_generation=0, reason="")
            async with sidecar(address, tmp_path / "cache") as (follower, events):
                await until(lambda: events.counts["hash"] > 2, "bytes that are not the named ones")
                assert follower.versions == []
                path.write_bytes(good)
                await follower.until(version(0))

    async def test_a_cache_on_a_full_disk(self, tmp_path: Path) -> None:
        """Stands for every way in which the own disk does not take it."""
        cache = tmp_path / "cache"
        cache.write_bytes(b"a file where a directory should be")
        async with (
            registry(tmp_path / "registry") as (store, address, _),
            sidecar(address, cache) as (follower, events),
        ):
            publish(store, make_bundle(version(0)))
            await until(lambda: events.counts["disk"] > 2, "a disk that is tried again")
            cache.unlink()
            await follower.until(version(0))


class TestServer:
    async def test_listing_and_changes(self, tmp_path: Path) -> None:
        async with registry(tmp_path, allow_changes=True) as (store, address, _):
            for number in range(3):
                store.add(make_bundle(version(number)))
            async with RemoteRegistry(address) as remote:
                listing = await remote.listing()
                assert listing == store.listing()
                state = await remote.point(
                    "default",
                    "stable",
                    version(1),
                    expected_generation=0,
                    reason="test",
                    frozen=True,
                )
                assert state == store.channel("default", "stable")
                assert state.frozen
                with pytest.raises(Exception, match="by now, not 0"):
                    await remote.point(
                        "default",
                        "stable",
                        version(2),
                        expected_generation=0,
                        reason="",
                        frozen=False,
                    )
                with pytest.raises(Exception, match="there is no such bundle"):
                    await remote.point(
                        "default", "stable", "7.0.0", expected_generation=1, reason="", frozen=False
                    )

    async def test_changes_are_refused_unless_allowed(self, tmp_path: Path) -> None:
        async with registry(tmp_path) as (store, address, _):
            store.add(make_bundle(version(0)))
            async with RemoteRegistry(address) as remote:
                with pytest.raises(Exception, match=r"set `registry\.allow_changes`"):
                    await remote.point(
                        "default",
                        "stable",
                        version(0),
                        expected_generation=0,
                        reason="",
                        frozen=False,
                    )
        assert store.channel("default", "stable").version == ""

    async def test_the_limit_of_streams(self, tmp_path: Path) -> None:
        async with registry(tmp_path, streams=2) as (store, address, events):
            publish(store, make_bundle(version(0)))
            async with grpc.aio.insecure_channel(address) as channel:
                calls = [_watch(channel) for _ in range(2)]
                for call in calls:
                    assert isinstance(await patiently(call.read(), "a state"), pb.ChannelState)
                with pytest.raises(grpc.aio.AioRpcError, match=r"raise `registry\.max_streams`"):
                    await _watch(channel).read()
                assert events.counts["registry.max_streams"] == 1
                calls[0].cancel()
                await until(lambda: events.counts["open"] == 1, "the end of a stream")
                assert await patiently(_watch(channel).read(), "a state again")

    @pytest.mark.parametrize(
        ("path", "offset", "code"),
        [
            ("score.onnx", 10**9, grpc.StatusCode.OUT_OF_RANGE),
            ("../../../etc/passwd", 0, grpc.StatusCode.NOT_FOUND),
            ("/etc/passwd", 0, grpc.StatusCode.NOT_FOUND),
            ("manifest.sig", 0, grpc.StatusCode.NOT_FOUND),
        ],
    )
    async def test_files_of_a_bundle_and_no_others(
        self, tmp_path: Path, path: str, offset: int, code: grpc.StatusCode
    ) -> None:
        async with registry(tmp_path) as (store, address, events):
            publish(store, make_bundle(version(0)))
            async with grpc.aio.insecure_channel(address) as channel:
                call = channel.unary_stream(
                    "/attnroute.registry.v1.Registry/Fetch",
                    request_serializer=pb.FetchRequest.SerializeToString,
                    response_deserializer=pb.FetchResponse.FromString,
                )(
                    pb.FetchRequest(
                        ref=pb.BundleRef(name="default", version=version(0)),
                        path=path,
                        offset_bytes=offset,
                    )
                )
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call.read()
                assert caught.value.code() is code
                assert events.counts["open"] == 0

    async def test_a_pointer_that_breaks_leaves_watchers_alone(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with (
            registry(tmp_path / "registry") as (store, address, _),
            sidecar(address, tmp_path / "cache") as (follower, events),
        ):
            publish(store, make_bundle(version(0)))
            await follower.until(version(0))
            pointer = tmp_path / "registry" / "default" / "channels" / "stable.json"
            good = pointer.read_text()
            pointer.write_text("{")
            await until(lambda: "a channel cannot be read" in caplog.text, "a line in the log")
            assert events.connected
            pointer.write_text(good)
            publish(store, make_bundle(version(1)))
            await follower.until(version(1))
            assert follower.versions == [version(0), version(1)]


def _watch(channel: grpc.aio.Channel) -> Any:
    return channel.unary_stream(
        "/attnroute.registry.v1.Registry/Watch",
        request_serializer=pb.WatchRequest.SerializeToString,
        response_deserializer=pb.ChannelState.FromString,
    )(pb.WatchRequest(name="default", channel="stable"))


@pytest.mark.parametrize(
    "ref",
    [
        pb.BundleRef(name="default", version="../..", manifest_sha256="a" * 64),
        pb.BundleRef(name="../default", version="1.0.0", manifest_sha256="a" * 64),
        pb.BundleRef(name="default", version="1.0.0", manifest_sha256="../../x"),
        pb.BundleRef(name="other", version="1.0.0", manifest_sha256="a" * 64),
    ],
)
def test_what_a_registry_says_may_become_no_path(ref: pb.BundleRef) -> None:
    with pytest.raises(MessageError):
        read_channel(pb.ChannelState(name="default", channel="stable", bundle=ref))
    if ref.name != "other":
        with pytest.raises(MessageError):
            read_listing(pb.ListResponse(bundles=[pb.Bundle(ref=ref)]))


def test_bundles_of_tests_answer_their_probe() -> None:
    """What stands in for a trained model here is a model: a runtime gives what its probe says."""
    import onnxruntime

    bundle = make_bundle()
    run = {
        name: onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run
        for name, data in bundle.graphs.items()
    }
    inputs = bundle.probe.inputs
    key, value = run["encode_endpoints.onnx"](None, {"endpoint": inputs["endpoint"]})
    (query,) = run["encode_classes.onnx"](None, {"request_class": inputs["request_class"]})
    rest = {name: inputs[name] for name in ("pair", "table_cost_s", "rtt_s", "mask")}
    outputs = run["score.onnx"](None, {"query": query, "key": key, "value": value, **rest})
    for name, found in zip(("cost_s", "spread", "probability"), outputs, strict=True):
        np.testing.assert_allclose(found, bundle.probe.outputs[name], rtol=1e-6)
