"""A sidecar with a model: what it serves, swaps, refuses, and how it is asked and told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Self

import pytest
from tests.integration.test_sidecar_commands import attnroute
from tests.support.models import lying_bundle, write_small
from tests.support.sidecar import Sidecar, minimal_policy
from tests.support.sync_peer import SyncPeer, sync_channel, sync_peer, unary

from attnroute import bundle
from attnroute._proto.admin.v1 import admin_pb2 as pb
from attnroute.admin.client import AdminClient
from attnroute.errors import AdminError

LEARNED = "    balancer: {type: learned}\n"


def policy(peers: list[SyncPeer], models: Path, rollout: str = "min_interval: 0s") -> str:
    return minimal_policy(
        *(peer.address for peer in peers),
        extra=f"{LEARNED}model: {{directory: {models}/default, rollout: {{{rollout}}}}}\n",
    ).replace("admin: {", f"admin: {{socket: {models}/admin.sock, ")


@contextmanager
def peers(count: int = 2) -> Iterator[list[SyncPeer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(sync_peer()) for _ in range(count)]


class Load:
    """Calls in threads; how many of them failed."""

    def __init__(self, sidecar: Sidecar, threads: int = 1) -> None:
        self.calls = 0
        self.failed: list[str] = []
        self._address = sidecar.address
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with sync_channel(self._address) as channel:
            while not self._stop.wait(0.002):
                try:
                    unary(channel)
                except Exception as error:  # noqa: BLE001 - counted
                    self.failed.append(str(error))
                self.calls += 1


@contextmanager
def admin(models: Path) -> Iterator[AdminClient]:
    with AdminClient(f"unix:{models}/admin.sock") as client:
        yield client


def stages(client: AdminClient) -> dict[str, int]:
    return {one.version: one.stage for one in client.get_model().history}


def is_at(client: AdminClient, version: str, stage: int) -> bool:
    return stages(client).get(version) == stage


def test_a_bundle_serves_and_others_take_its_place_under_load(tmp_path: Path) -> None:
    write_small(tmp_path, "1.0.0")
    with peers() as served, Sidecar(tmp_path, policy(served, tmp_path)) as sidecar:
        with Load(sidecar) as load, admin(tmp_path) as client:
            sidecar.until(lambda: client.get_model().HasField("serving"), "the first bundle")
            info = {"version": "1.0.0", "channel": "stable", "stage": "serving"}
            assert sidecar.metric("attnroute_model_info", **info) == 1
            sidecar.until(
                lambda: sidecar.metric("attnroute_scorer_runs_total", scorer="attention") > 1,
                "runs",
            )
            assert "attention-1.0.0" in client.get_weights("cart").model
            for number in range(1, 4):
                version = f"1.{number}.0"
                write_small(tmp_path, version)
                in_shadow = partial(is_at, client, version, pb.MODEL_STAGE_SHADOW)
                sidecar.until(in_shadow, "the shadow")
                assert client.set_model(pb.MODEL_ACTION_PROMOTE, version).serving.version == version
            answer = client.set_model(pb.MODEL_ACTION_ROLL_BACK)
            assert (answer.serving.version, answer.source) == ("1.2.0", f"{tmp_path}/default")
            assert stages(client)["1.3.0"] == pb.MODEL_STAGE_ROLLED_BACK
            (gate,) = client.get_weights("cart").scorers
            assert (gate.scorer, gate.version, gate.stage) == ("attention", "1.2.0", "serving")
            assert 0 <= gate.weight <= 1
            asked = ("weights", "cart"), ("explain", "cart", "--method", "/a.B/C")
            for command in asked:
                text = attnroute(*command, admin=f"unix:{tmp_path}/admin.sock").stdout
                shown = [line.split() for line in text.splitlines()]
                assert ["attention", "1.2.0", "serving"] in [line[:3] for line in shown], text
                done = attnroute(*command, "--json", admin=f"unix:{tmp_path}/admin.sock")
                (one,) = json.loads(done.stdout)["scorers"]
                assert (one["scorer"], one["stage"]) == ("attention", "serving")
            ends = {"stage": "rolled_back", "cause": "operator"}
            assert sidecar.metric("attnroute_model_ends_total", **ends) == 1
        assert load.calls > 50
        assert load.failed == []
        assert sidecar.metric("attnroute_scorer_faults_total") == 0
        usage = partial(
            sidecar.metric, "attnroute_kv_cache_usage_ratio", service="cart", stage="serving"
        )
        sidecar.until(lambda: 0 < usage() < 0.1, "rows in the K/V table")
        # Without `model` in the policy the table scores alone.
        without = policy(served, tmp_path).replace("model: {", "x-model: {")
        sidecar.write_policy(without)
        sidecar.until(lambda: "attnroute_model_info{" not in metrics(sidecar), "the reload")


def metrics(sidecar: Sidecar) -> str:
    return sidecar.get("/metrics").body.decode()


def test_what_is_wrong_with_a_bundle_is_told_and_the_last_good_one_serves(tmp_path: Path) -> None:
    write_small(tmp_path, "1.0.0")
    with peers() as served, Sidecar(tmp_path, policy(served, tmp_path)) as sidecar:
        with Load(sidecar) as load, admin(tmp_path) as client:
            sidecar.until(lambda: client.get_model().HasField("serving"), "the first bundle")
            broken = write_small(tmp_path, "1.1.0")
            (broken / "score.onnx").write_bytes(b"no")
            sidecar.until(lambda: "1.1.0" in stages(client), "a look at it")
            (newest,) = (one for one in client.get_model().history if one.version == "1.1.0")
            assert newest.stage in (pb.MODEL_STAGE_REFUSED, pb.MODEL_STAGE_SHADOW)
            slow = write_small(tmp_path, "1.2.0", work=900)
            sidecar.write_policy(
                policy(served, tmp_path).replace("rollout:", "run_limit: 1ms, rollout:")
            )
            sidecar.until(
                lambda: stages(client).get("1.2.0") == pb.MODEL_STAGE_REFUSED, f"no {slow}"
            )
            assert client.get_model().serving.version == "1.0.0"
        assert load.failed == []
        assert sidecar.metric("attnroute_model_ends_total", cause="slow") == 1


def test_changes_are_refused_on_tcp_and_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    (tmp_path / "default").mkdir()
    with peers(1) as served, Sidecar(tmp_path, policy(served, tmp_path)) as sidecar:
        with AdminClient(sidecar.admin) as tcp:
            assert not tcp.get_model().HasField("serving")
            with pytest.raises(AdminError, match="changes are refused on TCP"):
                tcp.set_model(pb.MODEL_ACTION_FREEZE)
        with admin(tmp_path) as client:
            with pytest.raises(AdminError, match="no model serves; the table scores alone"):
                client.set_model(pb.MODEL_ACTION_ROLL_BACK)
            with pytest.raises(AdminError, match="`version` goes with"):
                client.set_model(pb.MODEL_ACTION_FREEZE, "1.0.0")
            with pytest.raises(AdminError, match="`action` is 0"):
                client.set_model(pb.MODEL_ACTION_UNSPECIFIED)
            assert client.set_model(pb.MODEL_ACTION_FREEZE).frozen
            assert sidecar.metric("attnroute_model_frozen") == 1
            write_small(tmp_path, "1.0.0")
            sidecar.until(lambda: client.get_model().waiting == "1.0.0", "a bundle that waits")
            assert not client.set_model(pb.MODEL_ACTION_THAW).frozen
            sidecar.until(lambda: client.get_model().HasField("serving"), "its turn")


@pytest.mark.parametrize("fault", ["random", "permuted", "inverted", "collapsing", "nan"])
def test_a_model_that_lies_loses_its_say(tmp_path: Path, fault: str) -> None:
    bundle.write(tmp_path, lying_bundle(fault))
    with ExitStack() as stack:
        # Endpoints that differ: a lie about them shows.
        served = [stack.enter_context(sync_peer(delay_s=one)) for one in (0.002, 0.004, 0.02, 0.03)]
        sidecar = stack.enter_context(Sidecar(tmp_path, policy(served, tmp_path)))
        load = stack.enter_context(Load(sidecar, threads=6))
        client = stack.enter_context(admin(tmp_path))
        sidecar.until(lambda: client.get_model().HasField("serving"), "the bundle")

        # NaN comes only once S0 is what calls take, and ends with the model rolled back.
        steps = 5 if fault == "nan" else 1

        def judged() -> bool:
            return all(gate.steps >= steps for gate in client.get_weights("cart").scorers)

        sidecar.until(judged, "steps of its gate")
        assert all(gate.weight < 0.05 for gate in client.get_weights("cart").scorers)
        sidecar.until(lambda: client.get_weights("cart").model == "", "scores without it")
        assert load.failed == []


def test_a_plug_in_or_a_key_that_is_not_there_is_said_where_it_is_written(tmp_path: Path) -> None:
    text = policy([], tmp_path).replace("rollout:", f"public_key: {tmp_path}/no.pem, rollout:")
    text = text.replace(LEARNED, f"{LEARNED}    scorers: [by_hour]\n")
    sidecar = Sidecar(tmp_path, text.replace("{static: []}", "{static: ['127.0.0.1:1']}"))
    try:
        sidecar.start(wait_ready=False)
        assert sidecar.wait() == 2
        assert "scorer `by_hour` is not installed" in sidecar.stderr
        assert "no.pem" in sidecar.stderr
        assert f"{sidecar.policy_path}:" in sidecar.stderr
    finally:
        sidecar.kill()
