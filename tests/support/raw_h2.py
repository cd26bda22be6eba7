"""A raw HTTP/2 peer: any frame in any order, and every frame that came back with its time.

Libraries refuse to send what faulty peers send, and hide where one frame ends and the next begins.
This peer does neither: a test sends frames, and reads from `RawStream.blocks` and
`RawConnection.seen` exactly what crossed the wire. Settings and pings are
acknowledged and windows are kept open unless a test switches that off through `Manners`; nothing
else happens by itself. `raw_peers` has the server and the client made of these connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from tests.support.wait import patience_s

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = 0, 1, 2, 3
STREAM_CLOSED, REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 5, 7, 8, 11
STREAM_ID_MAX = 2**31 - 1
WINDOW_MAX = 2**31 - 1

_LOOK_INTERVAL_S = 0.05

Fields = list[tuple[bytes, bytes]]
Pairs = Iterable[tuple[str | bytes, str | bytes]]


def to_fields(pairs: Pairs) -> Fields:
    """Names and values as bytes, in order."""

    def as_bytes(text: str | bytes) -> bytes:
        return text.encode() if isinstance(text, str) else text

    return [(as_bytes(name), as_bytes(value)) for name, value in pairs]


def grpc_message(payload: bytes, *, compressed: int = 0) -> bytes:
    """One length-prefixed message."""
    return struct.pack(">BI", compressed, len(payload)) + payload


@dataclass
class Manners:
    """What a raw peer does by itself."""

    acknowledge_settings: bool = True
    answer_pings: bool = True
    keep_windows_open: bool = True
    """Give every DATA byte back to both windows as soon as it was read."""


@dataclass(frozen=True)
class Seen:
    """One received frame. `fields` is the decoded block on the frame that completed one."""

    at_s: float
    frame: Frame
    fields: Fields | None = None


@dataclass(frozen=True)
class Block:
    """One received header block."""

    at_s: float
    fields: Fields
    end_stream: bool

    def get(self, name: str) -> bytes | None:
        """The first value of that name."""
        return next(iter(self.all(name)), None)

    def all(self, name: str) -> list[bytes]:
        """Every value of that name, in order."""
        return [value for key, value in self.fields if key == name.encode()]


@dataclass(frozen=True)
class Chunk:
    """One received DATA frame."""

    at_s: float
    data: bytes
    end_stream: bool


@dataclass(eq=False)
class RawStream:
    """One stream, seen from this peer."""

    connection: RawConnection
    id: int
    opened_s: float = field(default_factory=time.monotonic)
    blocks: list[Block] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    bytes_received: int = 0
    ended_s: float | None = None
    reset_code: int | None = None
    left: bool = False
    """This side sent RST_STREAM."""
    send_window: int = 65_535

    # What came in.

    @property
    def data(self) -> bytes:
        """All DATA so far, without padding."""
        return b"".join(chunk.data for chunk in self.chunks)

    @property
    def ended(self) -> bool:
        """The peer sent END_STREAM."""
        return self.ended_s is not None

    @property
    def done(self) -> bool:
        """Nothing more can come: ended, reset, or the connection is gone."""
        return self.ended or self.reset_code is not None or self.connection.gone

    def value(self, name: str) -> bytes | None:
        """The value of that name in the newest block that has it."""
        values = [block.get(name) for block in self.blocks]
        return next((value for value in reversed(values) if value is not None), None)

    @property
    def grpc_status(self) -> int | None:
        """The final status as a gRPC client reads it: only from a block with END_STREAM."""
        if not self.blocks or not self.blocks[-1].end_stream:
            return None
        value = self.blocks[-1].get("grpc-status")
        return None if value is None else int(value)

    @property
    def grpc_message(self) -> str:
        """The final `grpc-message` as it stood on the wire."""
        value = self.blocks[-1].get("grpc-message") if self.blocks else None
        return (value or b"").decode("ascii")

    def describe(self) -> str:
        """The stream in one line, for failures."""
        return (
            f"stream {self.id}: blocks {[(b.fields, b.end_stream) for b in self.blocks]}, "
            f"{self.bytes_received} bytes in {len(self.chunks)} DATA frames, ended {self.ended}, "
            f"reset {self.reset_code}, connection gone {self.connection.gone}, "
            f"GOAWAY {[(g.last_stream_id, g.error_code) for g in self.connection.goaways]}"
        )

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits for something on this stream; a failure shows the stream."""
        try:
            await self.connection.until(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.describe()}") from None

    async def until_done(self) -> RawStream:
        """Waits until nothing more can come."""
        await self.until(lambda: self.done, "the end of the stream")
        return self

    async def until_headers(self) -> Block:
        """Waits for the first block that is no 1xx."""

        def final() -> list[Block]:
            return [b for b in self.blocks if not (b.get(":status") or b"").startswith(b"1")]

        await self.until(lambda: final() or self.done, "response headers")
        assert final(), f"no headers came: {self.describe()}"
        return final()[0]

    async def until_bytes(self, count: int) -> bytes:
        """Waits for at least `count` bytes of DATA."""
        await self.until(lambda: self.bytes_received >= count, f"{count} bytes of DATA")
        return self.data

    async def until_more_than(self, count: int) -> None:
        """Waits for more DATA than that, or for the end."""
        await self.until(lambda: self.bytes_received > count or self.done, "more DATA")

    # What goes out.

    def headers(self, pairs: Pairs, *, end_stream: bool = False) -> None:
        """Sends one header block, cut into CONTINUATION frames where it must be."""
        self.connection.send_headers(self.id, pairs, end_stream=end_stream)

    def data_frame(self, data: bytes, *, end_stream: bool = False, padding: int = 0) -> None:
        """Sends one DATA frame at once, whatever the windows say."""
        frame = DataFrame(self.id, data, pad_length=padding)
        if padding:
            frame.flags.add("PADDED")
        if end_stream:
            frame.flags.add("END_STREAM")
        self.connection.send(frame)
        spent = len(data) + (padding + 1 if padding else 0)
        self.send_window -= spent
        self.connection.send_window -= spent

    async def write(self, data: bytes, *, end_stream: bool = False) -> None:
        """Sends DATA as the peer's windows and frame size allow."""
        view = memoryview(data)
        while view:
            await self.until(
                lambda: min(self.send_window, self.connection.send_window) > 0 or self.dead,
                "window to send DATA",
            )
            if self.dead:
                raise ConnectionError(f"cannot send: {self.describe()}")
            window = min(self.send_window, self.connection.send_window)
            size = min(len(view), window, self.connection.frame_size_max)
            part, view = view[:size], view[size:]
            self.data_frame(bytes(part), end_stream=end_stream and not view)
            await self.connection.drain()
        if not data:
            self.data_frame(b"", end_stream=end_stream)

    @property
    def dead(self) -> bool:
        """Nothing more can be sent."""
        return self.reset_code is not None or self.connection.gone

    def reset(self, code: int = CANCEL) -> None:
        """Sends RST_STREAM."""
        self.connection.send(RstStreamFrame(self.id, error_code=code))
        self.left = True

    def open_window(self, bytes_more: int) -> None:
        """Sends WINDOW_UPDATE for this stream alone."""
        self.connection.send(WindowUpdateFrame(self.id, window_increment=bytes_more))


Handler = Callable[[RawStream], Awaitable[None]]


class RawConnection:
    """One HTTP/2 connection, either side of it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        manners: Manners | None = None,
        handler: Handler | None = None,
    ) -> None:
        self.manners = manners or Manners()
        self.opened_s = time.monotonic()
        self.seen: list[Seen] = []
        self.streams: dict[int, RawStream] = {}
        self.goaways: list[GoAwayFrame] = []
        self.peer_settings: dict[int, int] = {}
        self.send_window = 65_535
        self.gone = False
        self.gone_because = ""
        self.faults: list[BaseException] = []
        self.client_side = handler is None
        self._reader, self._writer = reader, writer
        self._handler = handler
        self._encoder, self._decoder = Encoder(), Decoder(max_header_list_size=16 * 1024 * 1024)
        self._block: tuple[HeadersFrame, bytearray] | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._finished_writing = False
        self._may_read = asyncio.Event()
        self._may_read.set()

    # Sending.

    @property
    def frame_size_max(self) -> int:
        """The largest payload the peer takes."""
        return self.peer_settings.get(SettingsFrame.MAX_FRAME_SIZE, 16_384)

    def send(self, *frames: Frame) -> None:
        """Writes frames as they are, in one piece."""
        self.send_bytes(b"".join(frame.serialize() for frame in frames))

    def send_bytes(self, data: bytes) -> None:
        """Writes anything; a lost connection is noticed by reading, not here."""
        if not self._writer.is_closing() and not self._finished_writing:
            self._writer.write(data)

    async def drain(self) -> None:
        """Waits until the kernel took what was written; a lost connection is no failure here."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def settings(self, values: dict[int, int]) -> None:
        """Sends SETTINGS."""
        self.send(SettingsFrame(0, settings=values))

    def send_headers(self, stream_id: int, pairs: Pairs, *, end_stream: bool = False) -> None:
        """Encodes one block and sends HEADERS and as many CONTINUATION frames as it needs."""
        self.send(*self.header_frames(stream_id, pairs, end_stream=end_stream))

    def header_frames(
        self, stream_id: int, pairs: Pairs, *, end_stream: bool = False
    ) -> list[Frame]:
        """The frames of one block, to be sent in this order and before any other block."""
        # Huffman coding in Python takes time that grows with the square of a value's length.
        encoded = self._encoder.encode(to_fields(pairs), huffman=False)
        size = self.frame_size_max
        pieces = [encoded[at : at + size] for at in range(0, len(encoded), size)] or [b""]
        first = HeadersFrame(stream_id, pieces[0])
        if end_stream:
            first.flags.add("END_STREAM")
        frames: list[Frame] = [first]
        frames += [ContinuationFrame(stream_id, piece) for piece in pieces[1:]]
        frames[-1].flags.add("END_HEADERS")
        return frames

    def goaway(self, last_stream_id: int, code: int = NO_ERROR, debug: bytes = b"") -> None:
        """Sends GOAWAY."""
        frame = GoAwayFrame(0, last_stream_id=last_stream_id, error_code=code)
        frame.additional_data = debug
        self.send(frame)

    def open_window(self, bytes_more: int) -> None:
        """Sends WINDOW_UPDATE for the connection alone."""
        self.send(WindowUpdateFrame(0, window_increment=bytes_more))

    def ping(self, payload: bytes = b"attnrout") -> None:
        """Sends PING."""
        self.send(PingFrame(0, opaque_data=payload))

    def open_stream(self) -> RawStream:
        """A stream with the next id of a client; nothing is sent yet."""
        stream_id = max([identifier for identifier in self.streams if identifier % 2], default=-1)
        return self._add_stream(stream_id + 2)

    # Ending, and not reading.

    def pause_reading(self) -> None:
        """Leaves what comes in the kernel's buffers; frames read before are unaffected."""
        self._may_read.clear()

    def resume_reading(self) -> None:
        """Reads on."""
        self._may_read.set()

    def end_writing(self) -> None:
        """TCP FIN: nothing more will be sent, reading goes on."""
        self._finished_writing = True
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def tcp_reset(self) -> None:
        """Drops the connection with a TCP RST; what the kernel has already sent stays sent."""
        if self.gone:
            return
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()
        self._lost("reset by this side")

    async def close(self) -> None:
        """Closes and waits for every task of this connection."""
        if self._reading is not None:
            self._reading.cancel()
        for task in self._tasks:
            task.cancel()
        waiting = [task for task in (self._reading, *self._tasks) if task is not None]
        await asyncio.gather(*waiting, return_exceptions=True)
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        self._lost("closed by this side")

    # Receiving.

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Waits for a condition; looks at it after every received frame, and now and then."""
        end_s = time.monotonic() + patience_s()
        while not condition():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise AssertionError(f"waited {patience_s():g} s in vain for: {what}")
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await asyncio.wait([waiter], timeout=min(left_s, _LOOK_INTERVAL_S))
            finally:
                self._waiters.discard(waiter)

    async def until_frame(self, kind: type[Frame], what: str = "") -> Frame:
        """Waits for the first frame of that type."""

        def found() -> list[Frame]:
            return [seen.frame for seen in self.seen if isinstance(seen.frame, kind)]

        await self.until(found, what or f"a {kind.__name__}")
        return found()[0]

    @property
    def pings(self) -> list[bytes]:
        """What the peer's own PING frames held."""
        frames = [seen.frame for seen in self.seen if isinstance(seen.frame, PingFrame)]
        return [frame.opaque_data for frame in frames if "ACK" not in frame.flags]

    def goaway_s(self) -> float:
        """When the first GOAWAY came."""
        return next(seen.at_s for seen in self.seen if isinstance(seen.frame, GoAwayFrame))

    async def until_pongs(self, count: int) -> None:
        """Waits for that many answers to pings."""

        def pongs() -> int:
            frames = [seen.frame for seen in self.seen if isinstance(seen.frame, PingFrame)]
            return sum("ACK" in frame.flags for frame in frames)

        await self.until(lambda: pongs() >= count, f"{count} answers to pings")

    async def next_frame(self) -> None:
        """Waits for any frame, or for the end of the connection."""
        count = len(self.seen)
        await self.until(lambda: len(self.seen) > count or self.gone, "another frame")

    async def until_settled(self) -> None:
        """Waits until no stream is open."""
        streams = list(self.streams.values())
        await self.until(lambda: all(s.done or s.left for s in streams), "the end of every call")

    async def until_gone(self) -> None:
        """Waits until the peer closed the connection."""
        await self.until(lambda: self.gone, "the end of the connection")

    def start(self) -> None:
        """Starts reading."""
        self._reading = asyncio.create_task(self._read())
        self._reading.add_done_callback(self._finished)

    async def _read(self) -> None:
        try:
            if not self.client_side:
                preface = await self._reader.readexactly(len(PREFACE))
                assert preface == PREFACE, f"not HTTP/2: {preface!r}"
            while True:
                await self._may_read.wait()
                header = await self._reader.readexactly(9)
                frame, length = Frame.parse_frame_header(memoryview(header))
                frame.parse_body(memoryview(await self._reader.readexactly(length)))
                self._take(frame)
                self._notify()
        except asyncio.IncompleteReadError:
            self._lost("closed by the other side")
        except OSError as error:
            self._lost(f"socket error: {error}")

    def _take(self, frame: Frame) -> None:
        fields = self._take_block(frame)
        self.seen.append(Seen(time.monotonic(), frame, fields))
        if isinstance(frame, SettingsFrame):
            self._take_settings(frame)
        elif isinstance(frame, PingFrame):
            if "ACK" not in frame.flags and self.manners.answer_pings:
                self.send(PingFrame(0, opaque_data=frame.opaque_data, flags=["ACK"]))
        elif isinstance(frame, WindowUpdateFrame):
            if frame.stream_id == 0:
                self.send_window += frame.window_increment
            elif frame.stream_id in self.streams:
                self.streams[frame.stream_id].send_window += frame.window_increment
        elif isinstance(frame, DataFrame):
            self._take_data(frame)
        elif isinstance(frame, RstStreamFrame):
            stream = self.streams.get(frame.stream_id)
            if stream is not None and stream.reset_code is None:
                stream.reset_code = frame.error_code
        elif isinstance(frame, GoAwayFrame):
            self.goaways.append(frame)

    def _take_block(self, frame: Frame) -> Fields | None:
        if isinstance(frame, HeadersFrame):
            self._block = (frame, bytearray(frame.data))
        elif isinstance(frame, ContinuationFrame):
            assert self._block is not None, "CONTINUATION without HEADERS"
            self._block[1].extend(frame.data)
        if self._block is None or "END_HEADERS" not in frame.flags:
            return None
        (first, encoded), self._block = self._block, None
        decoded = self._decoder.decode(bytes(encoded), raw=True)
        fields: Fields = [(bytes(name), bytes(value)) for name, value in decoded]
        end_stream = "END_STREAM" in first.flags
        known = first.stream_id in self.streams
        stream = self.streams.get(first.stream_id) or self._add_stream(first.stream_id)
        stream.blocks.append(Block(time.monotonic(), fields, end_stream))
        if end_stream:
            stream.ended_s = time.monotonic()
        if not known and self._handler is not None:
            self._spawn(self._handler(stream))
        return fields

    def _take_data(self, frame: DataFrame) -> None:
        stream = self.streams.get(frame.stream_id)
        end_stream = "END_STREAM" in frame.flags
        if stream is not None:
            stream.bytes_received += len(frame.data)
            stream.chunks.append(Chunk(time.monotonic(), bytes(frame.data), end_stream))
            if end_stream:
                stream.ended_s = time.monotonic()
        if self.manners.keep_windows_open and frame.flow_controlled_length:
            self.open_window(frame.flow_controlled_length)
            if stream is not None and not end_stream:
                stream.open_window(frame.flow_controlled_length)

    def _take_settings(self, frame: SettingsFrame) -> None:
        if "ACK" in frame.flags:
            return
        initial = SettingsFrame.INITIAL_WINDOW_SIZE
        before = self.peer_settings.get(initial, 65_535)
        self.peer_settings.update(frame.settings)
        change = self.peer_settings.get(initial, 65_535) - before
        for stream in self.streams.values():
            stream.send_window += change
        if SettingsFrame.HEADER_TABLE_SIZE in frame.settings:
            size = min(frame.settings[SettingsFrame.HEADER_TABLE_SIZE], 4096)
            self._encoder.header_table_size = size
        if self.manners.acknowledge_settings:
            self.send(SettingsFrame(0, flags=["ACK"]))

    def _add_stream(self, stream_id: int) -> RawStream:
        window = self.peer_settings.get(SettingsFrame.INITIAL_WINDOW_SIZE, 65_535)
        stream = RawStream(self, stream_id, send_window=window)
        self.streams[stream_id] = stream
        return stream

    def _spawn(self, work: Awaitable[None]) -> None:
        async def script() -> None:
            # The other side may leave while the script still writes: the test judges that.
            with contextlib.suppress(ConnectionError):
                await work

        task = asyncio.create_task(script())
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        """Keeps what went wrong in a script or in reading, so that a test fails for it."""
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self.faults.append(fault)
            self._lost(f"fault: {fault!r}")

    def _lost(self, because: str) -> None:
        if not self.gone:
            self.gone, self.gone_because = True, because
            self._writer.close()
        self._notify()

    def _notify(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
