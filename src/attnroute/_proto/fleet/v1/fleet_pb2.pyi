from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SidecarMessage(_message.Message):
    __slots__ = ("hello", "window")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    window: Window
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., window: _Optional[_Union[Window, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "sidecar_id", "zone", "service", "version", "metrics_port")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SIDECAR_ID_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METRICS_PORT_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    sidecar_id: bytes
    zone: str
    service: str
    version: str
    metrics_port: int
    def __init__(self, protocol: _Optional[int] = ..., sidecar_id: _Optional[bytes] = ..., zone: _Optional[str] = ..., service: _Optional[str] = ..., version: _Optional[str] = ..., metrics_port: _Optional[int] = ...) -> None: ...

class Window(_message.Message):
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
    endpoints: _containers.RepeatedCompositeFieldContainer[EndpointWindow]
    cells: CellWindows
    models: _containers.RepeatedCompositeFieldContainer[ModelReport]
    def __init__(self, number: _Optional[int] = ..., length_s: _Optional[float] = ..., age_s: _Optional[float] = ..., classes: _Optional[_Iterable[str]] = ..., endpoints: _Optional[_Iterable[_Union[EndpointWindow, _Mapping]]] = ..., cells: _Optional[_Union[CellWindows, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelReport, _Mapping]]] = ...) -> None: ...

class ModelReport(_message.Message):
    __slots__ = ("name", "version", "gain", "weight", "windows", "serving")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    gain: float
    weight: float
    windows: int
    serving: bool
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., gain: _Optional[float] = ..., weight: _Optional[float] = ..., windows: _Optional[int] = ..., serving: _Optional[bool] = ...) -> None: ...

class EndpointWindow(_message.Message):
    __slots__ = ("address", "incarnation", "rtt_s", "concurrency", "utilization", "utilization_reports", "rps", "reports", "reported_inflight", "ended", "inflight_estimate")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RTT_S_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_REPORTS_FIELD_NUMBER: _ClassVar[int]
    RPS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_INFLIGHT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    INFLIGHT_ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: float
    rtt_s: float
    concurrency: float
    utilization: float
    utilization_reports: float
    rps: float
    reports: float
    reported_inflight: float
    ended: float
    inflight_estimate: float
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[float] = ..., rtt_s: _Optional[float] = ..., concurrency: _Optional[float] = ..., utilization: _Optional[float] = ..., utilization_reports: _Optional[float] = ..., rps: _Optional[float] = ..., reports: _Optional[float] = ..., reported_inflight: _Optional[float] = ..., ended: _Optional[float] = ..., inflight_estimate: _Optional[float] = ...) -> None: ...

class CellWindows(_message.Message):
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
    class_index: _containers.RepeatedScalarFieldContainer[int]
    endpoint_index: _containers.RepeatedScalarFieldContainer[int]
    calls: _containers.RepeatedScalarFieldContainer[int]
    errors: _containers.RepeatedScalarFieldContainer[int]
    latency_s: _containers.RepeatedScalarFieldContainer[float]
    service_samples: _containers.RepeatedScalarFieldContainer[int]
    service_s: _containers.RepeatedScalarFieldContainer[float]
    estimated_s: _containers.RepeatedScalarFieldContainer[float]
    bucket_place: _containers.RepeatedScalarFieldContainer[int]
    bucket_calls: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, class_index: _Optional[_Iterable[int]] = ..., endpoint_index: _Optional[_Iterable[int]] = ..., calls: _Optional[_Iterable[int]] = ..., errors: _Optional[_Iterable[int]] = ..., latency_s: _Optional[_Iterable[float]] = ..., service_samples: _Optional[_Iterable[int]] = ..., service_s: _Optional[_Iterable[float]] = ..., estimated_s: _Optional[_Iterable[float]] = ..., bucket_place: _Optional[_Iterable[int]] = ..., bucket_calls: _Optional[_Iterable[int]] = ...) -> None: ...

class FleetUpdate(_message.Message):
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
    endpoints: _containers.RepeatedCompositeFieldContainer[EndpointSums]
    cells: CellSums
    split: Split
    def __init__(self, service: _Optional[str] = ..., sequence: _Optional[int] = ..., sidecars: _Optional[int] = ..., watermark: _Optional[int] = ..., trainer_id: _Optional[bytes] = ..., protocol: _Optional[int] = ..., full: _Optional[bool] = ..., classes: _Optional[_Iterable[str]] = ..., endpoints: _Optional[_Iterable[_Union[EndpointSums, _Mapping]]] = ..., cells: _Optional[_Union[CellSums, _Mapping]] = ..., split: _Optional[_Union[Split, _Mapping]] = ...) -> None: ...

class Split(_message.Message):
    __slots__ = ("classes", "endpoints", "probability")
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    classes: _containers.RepeatedScalarFieldContainer[str]
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    probability: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, classes: _Optional[_Iterable[str]] = ..., endpoints: _Optional[_Iterable[str]] = ..., probability: _Optional[_Iterable[float]] = ...) -> None: ...

class EndpointSums(_message.Message):
    __slots__ = ("address", "incarnation", "busy_s", "calls", "rtt_s", "concurrency")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    RTT_S_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    address: str
    incarnation: float
    busy_s: float
    calls: float
    rtt_s: float
    concurrency: float
    def __init__(self, address: _Optional[str] = ..., incarnation: _Optional[float] = ..., busy_s: _Optional[float] = ..., calls: _Optional[float] = ..., rtt_s: _Optional[float] = ..., concurrency: _Optional[float] = ...) -> None: ...

class CellSums(_message.Message):
    __slots__ = ("class_index", "endpoint_index", "service_s", "calls")
    CLASS_INDEX_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_INDEX_FIELD_NUMBER: _ClassVar[int]
    SERVICE_S_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    class_index: _containers.RepeatedScalarFieldContainer[int]
    endpoint_index: _containers.RepeatedScalarFieldContainer[int]
    service_s: _containers.RepeatedScalarFieldContainer[float]
    calls: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, class_index: _Optional[_Iterable[int]] = ..., endpoint_index: _Optional[_Iterable[int]] = ..., service_s: _Optional[_Iterable[float]] = ..., calls: _Optional[_Iterable[float]] = ...) -> None: ...
