"""What a proxy's memory grows by for what clients only hold: 1,000 idle connections, 1,000 idle
streams, and one reader that takes 200 MB slowly.

attnroute and Envoy in every round, in turn first, each fresh and alone on its core. Run it with
`.venv/bin/python -m benchmarks.scenarios.held_memory --rounds 3`; it prints one JSON document, in
bytes: medians for each connection and stream, the peak for the reader.
"""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.harness.errors import BenchmarkError
from benchmarks.harness.h2load import AUTHORITY, FRAME, PATH
from benchmarks.harness.process import Child
from benchmarks.harness.tools import find_tools
from benchmarks.peers import Launch, Peer
from benchmarks.peers.catalog import PEERS
from benchmarks.scenarios import Place

NAMES = ("attnroute", "envoy")
CONNECTIONS = 1_000
STREAMS = 1_000
STREAMS_PER_CONNECTION = 100
READER_BYTES = 200_000_000
READER_SECONDS = 10.0
LOOK_INTERVAL_S = 0.05
SETTLE_S = 2.0
PATIENCE_S = 30.0

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
ACK, END_STREAM, END_HEADERS = 1, 1, 4


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One HTTP/2 frame."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream_id.to_bytes(4, "big") + payload


def settings(**values: int) -> bytes:
    """SETTINGS: `streams` that may be open, `window` of each."""
    ids = {"streams": 3, "window": 4}
    pairs = (ids[k].to_bytes(2, "big") + v.to_bytes(4, "big") for k, v in values.items())
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def _literal(index: bytes, value: str) -> bytes:
    return index + bytes([len(value)]) + value.encode()


def request(path: str) -> bytes:
    """Header block of a call: POST and http by static index, the rest as literals that no table
    remembers."""
    return (
        b"\x83\x86"
        + _literal(b"\x04", path)
        + _literal(b"\x01", AUTHORITY)
        + _literal(b"\x0f\x10", "application/grpc")
        + _literal(b"\x00\x02te", "trailers")
    )


REQUEST = request(PATH)
RESPONSE = b"\x88" + _literal(b"\x0f\x10", "application/grpc")


class Endpoint:
    """Takes calls and answers none, or answers each with endless DATA, as windows allow."""

    def __init__(self, *, talks: bool) -> None:
        self._talks = talks
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._listener.getsockname()[1])
        self.streams = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = Reader(connection)
        windows = {0: 65_535}
        initial = 65_535
        open_stream = 0
        try:
            connection.sendall(settings(streams=100_000))
            reader.read(len(PREFACE))
            while True:
                kind, flags, stream_id, payload = reader.frame()
                if kind == SETTINGS and not flags & ACK:
                    for at in range(0, len(payload), 6):
                        if payload[at : at + 2] == b"\0\4":
                            initial = int.from_bytes(payload[at + 2 : at + 6], "big")
                    connection.sendall(frame(SETTINGS, ACK, 0))
                elif kind == PING and not flags & ACK:
                    connection.sendall(frame(PING, ACK, 0, payload))
                elif kind == HEADERS:
                    self.streams += 1
                    windows[stream_id] = initial
                    if self._talks:
                        open_stream = stream_id
                        connection.sendall(frame(HEADERS, END_HEADERS, stream_id, RESPONSE))
                elif kind == WINDOW_UPDATE:
                    more = int.from_bytes(payload, "big")
                    windows[stream_id] = windows.get(stream_id, initial) + more
                while open_stream and (room := min(windows[0], windows[open_stream], 16_384)) > 0:
                    connection.sendall(frame(DATA, 0, open_stream, bytes(room)))
                    windows[0] -= room
                    windows[open_stream] -= room
        except OSError:
            connection.close()


class Reader:
    """Frames of a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def read(self, count: int) -> bytes:
        """That many bytes; ConnectionError at the end."""
        parts = bytearray()
        while len(parts) < count:
            part = self._connection.recv(count - len(parts))
            if not part:
                raise ConnectionError("the connection ended")
            parts += part
        return bytes(parts)

    def frame(self) -> tuple[int, int, int, bytes]:
        """Kind, flags, stream and payload of the next one."""
        head = self.read(9)
        length, stream_id = int.from_bytes(head[:3], "big"), int.from_bytes(head[5:], "big")
        return head[3], head[4], stream_id, self.read(length)


def connect(peer: Peer, stack: ExitStack, **values: int) -> socket.socket:
    """A client connection that has begun HTTP/2."""
    connection = stack.enter_context(socket.create_connection(("127.0.0.1", peer.port)))
    connection.settimeout(PATIENCE_S)
    connection.sendall(PREFACE + settings(**values))
    return connection


def _until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end_s:
            raise BenchmarkError(f"waited {PATIENCE_S:g} s in vain for {what}")
        time.sleep(0.05)


def _child(peer: Peer) -> Child:
    assert peer.child is not None, "a proxy is a process"
    return peer.child


def idle_connections(peer: Peer, _endpoint: Endpoint, stack: ExitStack) -> float:
    """Bytes for each connection that has begun HTTP/2 and does nothing more."""
    before = _child(peer).rss_bytes()
    for _number in range(CONNECTIONS):
        connection = connect(peer, stack)
        Reader(connection).frame()  # its SETTINGS: the proxy has begun, too
    time.sleep(SETTLE_S)
    return (_child(peer).rss_bytes() - before) / CONNECTIONS


def idle_streams(peer: Peer, endpoint: Endpoint, stack: ExitStack) -> float:
    """Bytes for each call that is open and says nothing, connections included."""
    before = _child(peer).rss_bytes()
    had = endpoint.streams
    for _number in range(STREAMS // STREAMS_PER_CONNECTION):
        connection = connect(peer, stack)
        calls = (2 * number + 1 for number in range(STREAMS_PER_CONNECTION))
        connection.sendall(b"".join(frame(HEADERS, END_HEADERS, call, REQUEST) for call in calls))
    _until(lambda: endpoint.streams >= had + STREAMS, "every call at the endpoint")
    time.sleep(SETTLE_S)
    return (_child(peer).rss_bytes() - before) / STREAMS


def slow_reader(peer: Peer, _endpoint: Endpoint, stack: ExitStack) -> float:
    """Bytes that memory grew by at most while 200 MB were taken over 10 s."""
    connection = connect(peer, stack)
    connection.sendall(frame(HEADERS, END_HEADERS, 1, REQUEST) + frame(DATA, END_STREAM, 1, FRAME))
    before = peak = _child(peer).rss_bytes()
    reader, taken, started_s = Reader(connection), 0, time.monotonic()
    looked_s = started_s
    while taken < READER_BYTES:
        kind, _, _, payload = reader.frame()
        if kind != DATA or not payload:
            continue
        taken += len(payload)
        more = len(payload).to_bytes(4, "big")
        now_s = time.monotonic()
        if now_s - looked_s > LOOK_INTERVAL_S:
            peak, looked_s = max(peak, _child(peer).rss_bytes()), now_s
        ahead_s = started_s + READER_SECONDS * taken / READER_BYTES - now_s
        if ahead_s > LOOK_INTERVAL_S:
            time.sleep(ahead_s)
        connection.sendall(frame(WINDOW_UPDATE, 0, 0, more) + frame(WINDOW_UPDATE, 0, 1, more))
    return peak - before


MEASURES = {
    "idle_connection": (idle_connections, False),
    "idle_stream": (idle_streams, False),
    "slow_reader": (slow_reader, True),
}


def measure(place: Place, name: str, what: str, number: int) -> float:
    """One figure of one fresh proxy."""
    run, talks = MEASURES[what]
    with ExitStack() as stack:
        endpoint = Endpoint(talks=talks)
        folder = place.folder("held-memory", str(number), name, what)
        launch = Launch(place.tools, folder, place.proxy_core, (endpoint.port,))
        peer = PEERS[name](launch, stack)
        _until(lambda: _listens(peer), f"`{name}` to listen")
        with ExitStack() as warm:  # what the first connection costs once is no matter of the rest
            connection = connect(peer, warm)
            Reader(connection).frame()
            time.sleep(SETTLE_S)
        return run(peer, endpoint, stack)


def _listens(peer: Peer) -> bool:
    _child(peer).check_alive()
    try:
        socket.create_connection(("127.0.0.1", peer.port)).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {what: {n: [] for n in NAMES} for what in MEASURES}
    with tempfile.TemporaryDirectory() as directory:
        place = Place(find_tools(), Path(directory), proxy_core=0, load_core=1)
        for number in range(options.rounds):
            order = NAMES if number % 2 == 0 else tuple(reversed(NAMES))
            for what in MEASURES:
                for name in order:
                    found[what][name].append(measure(place, name, what, number))
    medians = {what: {n: median(v) for n, v in by.items()} for what, by in found.items()}
    print(json.dumps({"bytes_median": medians, "bytes": found}))


if __name__ == "__main__":
    main()
