"""K8-01: an application that starts before its sidecar can wait, or is told that it is early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import yaml
from tests.support.sidecar import ANY_PORT, Sidecar
from tests.support.sync_peer import sync_channel, sync_peer, unary
from tests.support.wait import patience_s

Start = Callable[..., Sidecar]

ROOT = Path(__file__).resolve().parents[2]


def policy(socket: Path, endpoints: Path) -> str:
    return (
        f"admin: {{grpc: {ANY_PORT}, http: {ANY_PORT}, socket: {socket}}}\n"
        f"drain: {{linger: 0s, limit: 1s}}\n"
        f"listeners:\n  - {{mode: explicit, address: {ANY_PORT}}}\n"
        f"services: {{cart: {{endpoints: {{file: {endpoints}}}}}}}\n"
    )


def test_k8_01_a_command_blocks_until_the_sidecar_that_comes_later_is_ready(
    start_sidecar: Start, tmp_path: Path
) -> None:
    socket, endpoints = tmp_path / "admin.sock", tmp_path / "endpoints.json"
    with (
        subprocess.Popen(
            [sys.executable, "-m", "attnroute", "wait", "--timeout", f"{patience_s():g}s"],
            stdout=subprocess.PIPE,
            env={**os.environ, "ATTNROUTE_ADMIN": f"unix:{socket}"},
        ) as waiting,
        sync_peer() as peer,
    ):
        try:
            sidecar = start_sidecar(policy(socket, endpoints), wait_ready=False)
            address = sidecar.logged("listening")["listeners"]["explicit-0"]
            with sync_channel(address) as channel:
                # It listens, and says what it lacks instead of refusing the connection.
                with pytest.raises(grpc.RpcError) as failure:
                    unary(channel)
                code, details = failure.value.code(), failure.value.details()
                assert code is grpc.StatusCode.UNAVAILABLE
                assert "`cart`" in (details or "")
                assert waiting.poll() is None
                endpoints.write_text(json.dumps({"endpoints": [peer.address]}))
                assert waiting.wait(patience_s()) == 0
                unary(channel)
        finally:
            waiting.kill()


def test_k8_01_the_manifest_starts_the_sidecar_before_the_application() -> None:
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes/sidecar.yaml").read_text())
    specs = [document["spec"] for document in documents if "spec" in document]
    pods = [spec.get("template", {}).get("spec", spec) for spec in specs]
    (sidecar,) = [
        container
        for pod in pods
        for container in pod.get("initContainers", ())
        if container["name"] == "attnroute"
    ]
    # An init container that restarts is up before the application and ends after it, and the
    # application begins once the probe of the start has passed.
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/readyz"
