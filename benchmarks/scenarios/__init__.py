"""What is measured, one scenario a file."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.h2load import Loader
from benchmarks.harness.process import wait_until
from benchmarks.harness.shapes import Shape
from benchmarks.harness.tools import Tools
from benchmarks.peers import Launch, Peer
from benchmarks.peers.catalog import PEERS

START_TIMEOUT_S = 20.0
_PROBE = Shape("probe", 1, 1, 0.0)


@dataclass(frozen=True)
class Place:
    """Where a run takes place. Every scenario and round gets folders of its own in `directory`."""

    tools: Tools
    directory: Path
    proxy_core: int
    load_core: int

    def folder(self, *parts: str) -> Path:
        """A folder of that name, made if needed."""
        path = self.directory.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def loader(self) -> Loader:
        """The load, on its core."""
        return Loader(self.tools.h2load, self.load_core, self.folder("load"))


def start_peer(
    name: str, place: Place, directory: Path, endpoint_ports: tuple[int, ...], stack: ExitStack
) -> Peer:
    """Start a proxy and return once a whole call came back through it."""
    launch = Launch(place.tools, directory, place.proxy_core, endpoint_ports)
    peer = PEERS[name](launch, stack)
    wait_until_it_answers(place, peer)
    return peer


def wait_until_it_answers(place: Place, peer: Peer) -> None:
    """Return once a whole call came back through a proxy."""
    loader = place.loader()

    def answers() -> bool:
        try:
            return loader.run(_PROBE, calls=1, port=peer.port).failed == 0
        except BenchmarkError:
            return False

    if peer.child is not None:
        wait_until(answers, what="no call came back", child=peer.child, timeout_s=START_TIMEOUT_S)
