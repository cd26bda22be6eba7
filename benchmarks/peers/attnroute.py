"""attnroute as users run it: `attnroute sidecar` with a policy, metrics and admin on."""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.h2load import AUTHORITY
from benchmarks.harness.process import Child, wait_until
from benchmarks.peers import Launch, Peer

START_TIMEOUT_S = 30.0

_CONFIG = """\
admin: {grpc: 127.0.0.1:0, http: 127.0.0.1:0}
listeners:
  - {mode: explicit, address: 127.0.0.1:0}
services:
  %(authority)s:
    authorities: [%(authority)s]
    balancer: %(balancer)s
    endpoints:
      static:
%(endpoints)s
"""


BALANCER = "{type: least_request, choice_count: 2}"


def start(launch: Launch, stack: ExitStack, *, extra: str = "", balancer: str = BALANCER) -> Peer:
    """Start the sidecar and wait for the ports it reports. extra: more keys of its policy."""
    if not launch.tools.attnroute.exists():
        raise BenchmarkError("`attnroute` is not installed beside this Python; run `scripts/setup`")
    text = extra + _CONFIG % {
        "authority": AUTHORITY,
        "balancer": balancer,
        "endpoints": "\n".join(
            f"        - 127.0.0.1:{endpoint}" for endpoint in launch.endpoint_ports
        ),
    }
    launch.directory.joinpath("attnroute.yaml").write_text(text)
    ports = launch.directory / "ports.json"
    ports.unlink(missing_ok=True)
    argv = [str(launch.tools.attnroute), "sidecar", "--config", "attnroute.yaml"]
    argv += ["--ports-file", str(ports)]
    child = Child("attnroute", argv, core=launch.core, directory=launch.directory)
    stack.callback(child.stop)
    wait_until(ports.exists, what="no ports file", child=child, timeout_s=START_TIMEOUT_S)
    bound = json.loads(ports.read_text())
    (address,) = bound["listeners"].values()
    metrics_url = f"http://{bound['admin']['http']}/metrics"
    return Peer(
        "attnroute",
        port=int(address.rpartition(":")[2]),
        child=child,
        config=text,
        calls_counted=lambda: count_calls(_scrape(metrics_url)),
        metrics=lambda: _scrape(metrics_url),
    )


def _scrape(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def count_calls(exposition: str) -> int:
    """Sum of `attnroute_requests_total` over all its labels."""
    return sum(
        int(float(line.rpartition(" ")[2]))
        for line in exposition.splitlines()
        if line.startswith(("attnroute_requests_total{", "attnroute_requests_total "))
    )
