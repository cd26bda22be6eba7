from attnroute._proto.fleet.v1 import fleet_pb2 as _fleet_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PackedSidecarMessage(_message.Message):
    __slots__ = ("hello", "window")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    hello: _fleet_pb2.Hello
    window: PackedWindow
    def __init__(self, hello: _Optional[_Union[_fleet_pb2.Hello, _Mapping]] = ..., window: _Optional[_Union[PackedWindow, _Mapping]] = ...) -> None: ...

class PackedWindow(_message.Message):
    __slots__ = ("number", "length_s", "age_s", "classes", "endpoints", "cells", "models")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LENGTH_S_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    number: int
    length_s: float
    age_s: float
    classes: _containers.RepeatedScalarFieldContainer[str]
    endpoints: _containers.RepeatedCompositeFieldContainer[_fleet_pb2.EndpointWindow]
    cells: PackedCellWindows
    models: _containers.RepeatedCompositeFieldContainer[_fleet_pb2.ModelReport]
    def __init__(self, number: _Optional[int] = ..., length_s: _Optional[float] = ..., age_s: _Optional[float] = ..., classes: _Optional[_Iterable[str]] = ..., endpoints: _Optional[_Iterable[_Union[_fleet_pb2.EndpointWindow, _Mapping]]] = ..., cells: _Optional[_Union[PackedCellWindows, _Mapping]] = ..., models: _Optional[_Iterable[_Union[_fleet_pb2.ModelReport, _Mapping]]] = ...) -> None: ...

class PackedCellWindows(_message.Message):
    __slots__ = ("class_index", "endpoint_index", "calls", "errors", "latency_s", "service_samples", "service_s", "estimated_s", "bucket_place", "bucket_calls")
    CLASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    SERVICE_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SERVICE_S_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_S_FIELD_NUMBER: _ClassVar[int]
    BUCKET_PLACE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_CALLS_FIELD_NUMBER: _ClassVar[int]
    class_index: bytes
    endpoint_index: bytes
    calls: bytes
    errors: bytes
    latency_s: bytes
    service_samples: bytes
    service_s: bytes
    estimated_s: bytes
    bucket_place: bytes
    bucket_calls: bytes
    def __init__(self, class_index: _Optional[bytes] = ..., endpoint_index: _Optional[bytes] = ..., calls: _Optional[bytes] = ..., errors: _Optional[bytes] = ..., latency_s: _Optional[bytes] = ..., service_samples: _Optional[bytes] = ..., service_s: _Optional[bytes] = ..., estimated_s: _Optional[bytes] = ..., bucket_place: _Optional[bytes] = ..., bucket_calls: _Optional[bytes] = ...) -> None: ...

class PackedFleetUpdate(_message.Message):
    __slots__ = ("service", "sequence", "sidecars", "watermark", "trainer_id", "protocol", "full", "classes", "endpoints", "cells", "split")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SIDECARS_FIELD_NUMBER: _ClassVar[int]
    WATERMARK_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    service: str
    sequence: int
    sidecars: int
    watermark: int
    trainer_id: bytes
    protocol: int
    full: bool
    classes: _containers.RepeatedScalarFieldContainer[str]
    endpoints: _containers.RepeatedCompositeFieldContainer[_fleet_pb2.EndpointSums]
    cells: PackedCellSums
    split: PackedSplit
    def __init__(self, service: _Optional[str] = ..., sequence: _Optional[int] = ..., sidecars: _Optional[int] = ..., watermark: _Optional[int] = ..., trainer_id: _Optional[bytes] = ..., protocol: _Optional[int] = ..., full: _Optional[bool] = ..., classes: _Optional[_Iterable[str]] = ..., endpoints: _Optional[_Iterable[_Union[_fleet_pb2.EndpointSums, _Mapping]]] = ..., cells: _Optional[_Union[PackedCellSums, _Mapping]] = ..., split: _Optional[_Union[PackedSplit, _Mapping]] = ...) -> None: ...

class PackedSplit(_message.Message):
    __slots__ = ("classes", "endpoints", "probability")
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    classes: _containers.RepeatedScalarFieldContainer[str]
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    probability: bytes
    def __init__(self, classes: _Optional[_Iterable[str]] = ..., endpoints: _Optional[_Iterable[str]] = ..., probability: _Optional[bytes] = ...) -> None: ...

class PackedCellSums(_message.Message):
    __slots__ = ("class_index", "endpoint_index", "service_s", "calls")
    CLASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SERVICE_S_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    class_index: bytes
    endpoint_index: bytes
    service_s: bytes
    calls: bytes
    def __init__(self, class_index: _Optional[bytes] = ..., endpoint_index: _Optional[bytes] = ..., service_s: _Optional[bytes] = ..., calls: _Optional[bytes] = ...) -> None: ...
