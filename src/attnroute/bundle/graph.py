"""What a graph says of itself, read from its bytes without a runtime.

An ONNX file is a protobuf message (onnx.proto, ModelProto). Only a few numbers and names of it are
needed to refuse a wrong one, so that few fields are walked here: the package `onnx` would be a
dependency of training in every sidecar, and a session costs milliseconds and holds the GIL.
Field numbers: ModelProto 7 graph, 8 opset_import; OperatorSetIdProto 1 domain, 2 version;
GraphProto 5 initializer, 11 input, 12 output; ValueInfoProto 1 name; TensorProto 14 data_location.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Graph", "GraphError", "read_graph"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DEFAULT_DOMAINS = (b"", b"ai.onnx")
_EXTERNAL = 1


class GraphError(ValueError):
    """The bytes are no ONNX model; the message says where they stop making sense."""


@dataclass(frozen=True)
class Graph:
    """Of one file."""

    opset: int
    """Of the standard operators; 0: it names none."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    external: bool
    """Some weights lie in other files."""


def read_graph(data: bytes) -> Graph:
    """Reads a model. Raises GraphError for bytes that are none."""
    view = memoryview(data)
    opset, graphs = 0, []
    for field, value in _fields(view):
        if field == 7 and isinstance(value, memoryview):
            graphs.append(value)
        elif field == 8 and isinstance(value, memoryview):
            known = dict(_fields(value))
            domain = known.get(1, memoryview(b""))
            version = known.get(2, 0)
            if isinstance(domain, memoryview) and bytes(domain) in _DEFAULT_DOMAINS:
                opset = version if isinstance(version, int) else 0
    if len(graphs) != 1:
        raise GraphError(f"it holds {len(graphs)} graphs")
    inputs: list[str] = []
    outputs: list[str] = []
    initialised: set[str] = set()
    external = False
    for field, value in _fields(graphs[0]):
        if field not in (5, 11, 12) or not isinstance(value, memoryview):
            continue
        known = dict(_fields(value))
        if field == 5:
            external = external or known.get(14, 0) == _EXTERNAL
            initialised.add(_text(known.get(8, b"")))
        else:
            (inputs if field == 11 else outputs).append(_text(known.get(1, b"")))
    return Graph(
        opset,
        # Older writers list weights among the inputs.
        tuple(name for name in inputs if name not in initialised),
        tuple(outputs),
        external,
    )


def _text(value: object) -> str:
    return bytes(value).decode("utf-8", "replace") if isinstance(value, memoryview | bytes) else ""


def _fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Field numbers with their values, a number or bytes, in order."""
    at = 0
    while at < len(view):
        tag, at = _varint(view, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(view, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(view, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise GraphError(f"byte {at} begins no field")
        if size > len(view) - at:
            raise GraphError(f"it ends within a field of {size} bytes")
        yield tag >> 3, view[at : at + size]
        at += size


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at >= len(view):
            raise GraphError("it ends within a number")
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at
    raise GraphError(f"the number before byte {at} has no end")
