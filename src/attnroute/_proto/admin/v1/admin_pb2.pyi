import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EndpointState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENDPOINT_STATE_UNSPECIFIED: _ClassVar[EndpointState]
    ENDPOINT_STATE_USABLE: _ClassVar[EndpointState]
    ENDPOINT_STATE_CONNECT_FAILING: _ClassVar[EndpointState]
    ENDPOINT_STATE_WEIGHT_ZERO: _ClassVar[EndpointState]
    ENDPOINT_STATE_EJECTED: _ClassVar[EndpointState]
    ENDPOINT_STATE_UNHEALTHY: _ClassVar[EndpointState]
    ENDPOINT_STATE_STANDBY: _ClassVar[EndpointState]
    ENDPOINT_STATE_DRAINED: _ClassVar[EndpointState]

class Override(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OVERRIDE_UNSPECIFIED: _ClassVar[Override]
    OVERRIDE_NONE: _ClassVar[Override]
    OVERRIDE_DRAIN: _ClassVar[Override]
    OVERRIDE_PIN: _ClassVar[Override]

class ModelStage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STAGE_UNSPECIFIED: _ClassVar[ModelStage]
    MODEL_STAGE_LOADING: _ClassVar[ModelStage]
    MODEL_STAGE_SHADOW: _ClassVar[ModelStage]
    MODEL_STAGE_CANARY: _ClassVar[ModelStage]
    MODEL_STAGE_SERVING: _ClassVar[ModelStage]
    MODEL_STAGE_RETIRED: _ClassVar[ModelStage]
    MODEL_STAGE_REFUSED: _ClassVar[ModelStage]
    MODEL_STAGE_ROLLED_BACK: _ClassVar[ModelStage]

class ModelAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_ACTION_UNSPECIFIED: _ClassVar[ModelAction]
    MODEL_ACTION_PROMOTE: _ClassVar[ModelAction]
    MODEL_ACTION_ROLL_BACK: _ClassVar[ModelAction]
    MODEL_ACTION_FREEZE: _ClassVar[ModelAction]
    MODEL_ACTION_THAW: _ClassVar[ModelAction]
ENDPOINT_STATE_UNSPECIFIED: EndpointState
ENDPOINT_STATE_USABLE: EndpointState
ENDPOINT_STATE_CONNECT_FAILING: EndpointState
ENDPOINT_STATE_WEIGHT_ZERO: EndpointState
ENDPOINT_STATE_EJECTED: EndpointState
ENDPOINT_STATE_UNHEALTHY: EndpointState
ENDPOINT_STATE_STANDBY: EndpointState
ENDPOINT_STATE_DRAINED: EndpointState
OVERRIDE_UNSPECIFIED: Override
OVERRIDE_NONE: Override
OVERRIDE_DRAIN: Override
OVERRIDE_PIN: Override
MODEL_STAGE_UNSPECIFIED: ModelStage
MODEL_STAGE_LOADING: ModelStage
MODEL_STAGE_SHADOW: ModelStage
MODEL_STAGE_CANARY: ModelStage
MODEL_STAGE_SERVING: ModelStage
MODEL_STAGE_RETIRED: ModelStage
MODEL_STAGE_REFUSED: ModelStage
MODEL_STAGE_ROLLED_BACK: ModelStage
MODEL_ACTION_UNSPECIFIED: ModelAction
MODEL_ACTION_PROMOTE: ModelAction
MODEL_ACTION_ROLL_BACK: ModelAction
MODEL_ACTION_FREEZE: ModelAction
MODEL_ACTION_THAW: ModelAction

class ListServicesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListServicesResponse(_message.Message):
    __slots__ = ("services",)
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    services: _containers.RepeatedCompositeFieldContainer[Service]
    def __init__(self, services: _Optional[_Iterable[_Union[Service, _Mapping]]] = ...) -> None: ...

class Service(_message.Message):
    __slots__ = ("name", "authorities", "balancer", "endpoints", "usable_endpoints", "endpoint_epoch", "in_flight", "source", "source_error")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    BALANCER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    USABLE_ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    authorities: _containers.RepeatedScalarFieldContainer[str]
    balancer: str
    endpoints: int
    usable_endpoints: int
    endpoint_epoch: int
    in_flight: int
    source: str
    source_error: str
    def __init__(self, name: _Optional[str] = ..., authorities: _Optional[_Iterable[str]] = ..., balancer: _Optional[str] = ..., endpoints: _Optional[int] = ..., usable_endpoints: _Optional[int] = ..., endpoint_epoch: _Optional[int] = ..., in_flight: _Optional[int] = ..., source: _Optional[str] = ..., source_error: _Optional[str] = ...) -> None: ...

class ListEndpointsRequest(_message.Message):
    __slots__ = ("service",)
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    service: str
    def __init__(self, service: _Optional[str] = ...) -> None: ...

class ListEndpointsResponse(_message.Message):
    __slots__ = ("service", "endpoint_epoch", "endpoints")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    service: str
    endpoint_epoch: int
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    def __init__(self, service: _Optional[str] = ..., endpoint_epoch: _Optional[int] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("address", "state", "zone", "labels", "static_weight", "in_flight", "connections", "picks_total", "successes_total", "failures_total", "mean_latency_s", "priority", "override")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    STATIC_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    PICKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SUCCESSES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FAILURES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MEAN_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    address: str
    state: EndpointState
    zone: str
    labels: _containers.ScalarMap[str, str]
    static_weight: float
    in_flight: int
    connections: int
    picks_total: int
    successes_total: int
    failures_total: int
    mean_latency_s: float
    priority: int
    override: EndpointOverride
    def __init__(self, address: _Optional[str] = ..., state: _Optional[_Union[EndpointState, str]] = ..., zone: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., static_weight: _Optional[float] = ..., in_flight: _Optional[int] = ..., connections: _Optional[int] = ..., picks_total: _Optional[int] = ..., successes_total: _Optional[int] = ..., failures_total: _Optional[int] = ..., mean_latency_s: _Optional[float] = ..., priority: _Optional[int] = ..., override: _Optional[_Union[EndpointOverride, _Mapping]] = ...) -> None: ...

class EndpointOverride(_message.Message):
    __slots__ = ("kind", "expires_at")
    KIND_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    kind: Override
    expires_at: _timestamp_pb2.Timestamp
    def __init__(self, kind: _Optional[_Union[Override, str]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SetOverrideRequest(_message.Message):
    __slots__ = ("service", "endpoint", "override", "duration")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    service: str
    endpoint: str
    override: Override
    duration: _duration_pb2.Duration
    def __init__(self, service: _Optional[str] = ..., endpoint: _Optional[str] = ..., override: _Optional[_Union[Override, str]] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class SetOverrideResponse(_message.Message):
    __slots__ = ("service", "endpoint", "override", "endpoint_epoch")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    service: str
    endpoint: str
    override: EndpointOverride
    endpoint_epoch: int
    def __init__(self, service: _Optional[str] = ..., endpoint: _Optional[str] = ..., override: _Optional[_Union[EndpointOverride, _Mapping]] = ..., endpoint_epoch: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("service", "endpoint", "duration", "wait")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    DURATION_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    service: str
    endpoint: str
    duration: _duration_pb2.Duration
    wait: _duration_pb2.Duration
    def __init__(self, service: _Optional[str] = ..., endpoint: _Optional[str] = ..., duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("service", "endpoint", "override", "endpoint_epoch", "in_flight")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    service: str
    endpoint: str
    override: EndpointOverride
    endpoint_epoch: int
    in_flight: int
    def __init__(self, service: _Optional[str] = ..., endpoint: _Optional[str] = ..., override: _Optional[_Union[EndpointOverride, _Mapping]] = ..., endpoint_epoch: _Optional[int] = ..., in_flight: _Optional[int] = ...) -> None: ...

class GetWeightsRequest(_message.Message):
    __slots__ = ("service", "request_class")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CLASS_FIELD_NUMBER: _ClassVar[int]
    service: str
    request_class: str
    def __init__(self, service: _Optional[str] = ..., request_class: _Optional[str] = ...) -> None: ...

class WatchWeightsRequest(_message.Message):
    __slots__ = ("service", "request_class", "min_interval_ms")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CLASS_FIELD_NUMBER: _ClassVar[int]
    MIN_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    service: str
    request_class: str
    min_interval_ms: int
    def __init__(self, service: _Optional[str] = ..., request_class: _Optional[str] = ..., min_interval_ms: _Optional[int] = ...) -> None: ...

class GetWeightsResponse(_message.Message):
    __slots__ = ("service", "balancer", "endpoint_epoch", "read_at", "classes", "table_epoch", "table_age_s", "model", "reason", "scorers")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    BALANCER_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    READ_AT_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    TABLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLE_AGE_S_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SCORERS_FIELD_NUMBER: _ClassVar[int]
    service: str
    balancer: str
    endpoint_epoch: int
    read_at: _timestamp_pb2.Timestamp
    classes: _containers.RepeatedCompositeFieldContainer[ClassWeights]
    table_epoch: int
    table_age_s: float
    model: str
    reason: str
    scorers: _containers.RepeatedCompositeFieldContainer[ScorerGate]
    def __init__(self, service: _Optional[str] = ..., balancer: _Optional[str] = ..., endpoint_epoch: _Optional[int] = ..., read_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., classes: _Optional[_Iterable[_Union[ClassWeights, _Mapping]]] = ..., table_epoch: _Optional[int] = ..., table_age_s: _Optional[float] = ..., model: _Optional[str] = ..., reason: _Optional[str] = ..., scorers: _Optional[_Iterable[_Union[ScorerGate, _Mapping]]] = ...) -> None: ...

class ClassWeights(_message.Message):
    __slots__ = ("request_class", "endpoints")
    REQUEST_CLASS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    request_class: str
    endpoints: _containers.RepeatedCompositeFieldContainer[EndpointWeight]
    def __init__(self, request_class: _Optional[str] = ..., endpoints: _Optional[_Iterable[_Union[EndpointWeight, _Mapping]]] = ...) -> None: ...

class EndpointWeight(_message.Message):
    __slots__ = ("address", "weight", "share", "state", "in_flight", "predicted_latency_s", "spread")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_LATENCY_S_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    address: str
    weight: float
    share: float
    state: EndpointState
    in_flight: int
    predicted_latency_s: float
    spread: float
    def __init__(self, address: _Optional[str] = ..., weight: _Optional[float] = ..., share: _Optional[float] = ..., state: _Optional[_Union[EndpointState, str]] = ..., in_flight: _Optional[int] = ..., predicted_latency_s: _Optional[float] = ..., spread: _Optional[float] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfigResponse(_message.Message):
    __slots__ = ("policy_yaml", "sha256", "source", "generation", "applied_at", "rejected")
    POLICY_YAML_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    APPLIED_AT_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    policy_yaml: str
    sha256: str
    source: str
    generation: int
    applied_at: _timestamp_pb2.Timestamp
    rejected: str
    def __init__(self, policy_yaml: _Optional[str] = ..., sha256: _Optional[str] = ..., source: _Optional[str] = ..., generation: _Optional[int] = ..., applied_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rejected: _Optional[str] = ...) -> None: ...

class ListPicksRequest(_message.Message):
    __slots__ = ("service", "last")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    service: str
    last: int
    def __init__(self, service: _Optional[str] = ..., last: _Optional[int] = ...) -> None: ...

class ListPicksResponse(_message.Message):
    __slots__ = ("service", "picks", "number", "dropped_total")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    PICKS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DROPPED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    service: str
    picks: _containers.RepeatedCompositeFieldContainer[Pick]
    number: int
    dropped_total: int
    def __init__(self, service: _Optional[str] = ..., picks: _Optional[_Iterable[_Union[Pick, _Mapping]]] = ..., number: _Optional[int] = ..., dropped_total: _Optional[int] = ...) -> None: ...

class WatchPicksRequest(_message.Message):
    __slots__ = ("service", "after")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    service: str
    after: int
    def __init__(self, service: _Optional[str] = ..., after: _Optional[int] = ...) -> None: ...

class Pick(_message.Message):
    __slots__ = ("number", "time", "service", "method", "request_class", "endpoint", "runner_up", "reason", "endpoint_epoch", "candidates", "candidates_total", "key", "rng_key", "rng_counter", "picked_ns", "learned_json", "left_out", "left_out_total")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CLASS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    RUNNER_UP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RNG_KEY_FIELD_NUMBER: _ClassVar[int]
    RNG_COUNTER_FIELD_NUMBER: _ClassVar[int]
    PICKED_NS_FIELD_NUMBER: _ClassVar[int]
    LEARNED_JSON_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_TOTAL_FIELD_NUMBER: _ClassVar[int]
    number: int
    time: _timestamp_pb2.Timestamp
    service: str
    method: str
    request_class: str
    endpoint: str
    runner_up: str
    reason: str
    endpoint_epoch: int
    candidates: _containers.RepeatedCompositeFieldContainer[PickCandidate]
    candidates_total: int
    key: int
    rng_key: int
    rng_counter: int
    picked_ns: int
    learned_json: str
    left_out: _containers.RepeatedScalarFieldContainer[str]
    left_out_total: int
    def __init__(self, number: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., service: _Optional[str] = ..., method: _Optional[str] = ..., request_class: _Optional[str] = ..., endpoint: _Optional[str] = ..., runner_up: _Optional[str] = ..., reason: _Optional[str] = ..., endpoint_epoch: _Optional[int] = ..., candidates: _Optional[_Iterable[_Union[PickCandidate, _Mapping]]] = ..., candidates_total: _Optional[int] = ..., key: _Optional[int] = ..., rng_key: _Optional[int] = ..., rng_counter: _Optional[int] = ..., picked_ns: _Optional[int] = ..., learned_json: _Optional[str] = ..., left_out: _Optional[_Iterable[str]] = ..., left_out_total: _Optional[int] = ...) -> None: ...

class PickCandidate(_message.Message):
    __slots__ = ("address", "in_flight", "static_weight", "weight")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    STATIC_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    address: str
    in_flight: int
    static_weight: float
    weight: float
    def __init__(self, address: _Optional[str] = ..., in_flight: _Optional[int] = ..., static_weight: _Optional[float] = ..., weight: _Optional[float] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("service", "method", "message_bytes", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    service: str
    method: str
    message_bytes: int
    headers: _containers.ScalarMap[str, str]
    def __init__(self, service: _Optional[str] = ..., method: _Optional[str] = ..., message_bytes: _Optional[int] = ..., headers: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("service", "request_class", "balancer", "reason", "endpoint_epoch", "table_epoch", "table_age_s", "model", "chosen", "runner_up", "margin", "endpoints", "read_at", "full_scan")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_CLASS_FIELD_NUMBER: _ClassVar[int]
    BALANCER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLE_AGE_S_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    RUNNER_UP_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    READ_AT_FIELD_NUMBER: _ClassVar[int]
    FULL_SCAN_FIELD_NUMBER: _ClassVar[int]
    service: str
    request_class: str
    balancer: str
    reason: str
    endpoint_epoch: int
    table_epoch: int
    table_age_s: float
    model: str
    chosen: str
    runner_up: str
    margin: float
    endpoints: _containers.RepeatedCompositeFieldContainer[ExplainedEndpoint]
    read_at: _timestamp_pb2.Timestamp
    full_scan: bool
    def __init__(self, service: _Optional[str] = ..., request_class: _Optional[str] = ..., balancer: _Optional[str] = ..., reason: _Optional[str] = ..., endpoint_epoch: _Optional[int] = ..., table_epoch: _Optional[int] = ..., table_age_s: _Optional[float] = ..., model: _Optional[str] = ..., chosen: _Optional[str] = ..., runner_up: _Optional[str] = ..., margin: _Optional[float] = ..., endpoints: _Optional[_Iterable[_Union[ExplainedEndpoint, _Mapping]]] = ..., read_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., full_scan: _Optional[bool] = ...) -> None: ...

class ExplainedEndpoint(_message.Message):
    __slots__ = ("address", "usable", "why_not", "cost_s", "weight", "in_flight", "terms")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    USABLE_FIELD_NUMBER: _ClassVar[int]
    WHY_NOT_FIELD_NUMBER: _ClassVar[int]
    COST_S_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    address: str
    usable: bool
    why_not: str
    cost_s: float
    weight: float
    in_flight: int
    terms: CostTerms
    def __init__(self, address: _Optional[str] = ..., usable: _Optional[bool] = ..., why_not: _Optional[str] = ..., cost_s: _Optional[float] = ..., weight: _Optional[float] = ..., in_flight: _Optional[int] = ..., terms: _Optional[_Union[CostTerms, _Mapping]] = ...) -> None: ...

class CostTerms(_message.Message):
    __slots__ = ("rtt_s", "predicted_s", "spread", "mean_service_s", "concurrency", "in_flight_own", "in_flight_others", "in_flight", "report_age_s", "ratio", "ratio_of_kind", "expected_s", "utilization", "errors", "cost_rtt_s", "cost_service_s", "cost_queue_s", "cost_utilization_s", "cost_congestion_s", "cost_class_congestion_s", "cost_error_s")
    RTT_S_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_S_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    MEAN_SERVICE_S_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_OWN_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_OTHERS_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    REPORT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    RATIO_FIELD_NUMBER: _ClassVar[int]
    RATIO_OF_KIND_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_S_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    COST_RTT_S_FIELD_NUMBER: _ClassVar[int]
    COST_SERVICE_S_FIELD_NUMBER: _ClassVar[int]
    COST_QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    COST_UTILIZATION_S_FIELD_NUMBER: _ClassVar[int]
    COST_CONGESTION_S_FIELD_NUMBER: _ClassVar[int]
    COST_CLASS_CONGESTION_S_FIELD_NUMBER: _ClassVar[int]
    COST_ERROR_S_FIELD_NUMBER: _ClassVar[int]
    rtt_s: float
    predicted_s: float
    spread: float
    mean_service_s: float
    concurrency: float
    in_flight_own: float
    in_flight_others: float
    in_flight: float
    report_age_s: float
    ratio: float
    ratio_of_kind: float
    expected_s: float
    utilization: float
    errors: float
    cost_rtt_s: float
    cost_service_s: float
    cost_queue_s: float
    cost_utilization_s: float
    cost_congestion_s: float
    cost_class_congestion_s: float
    cost_error_s: float
    def __init__(self, rtt_s: _Optional[float] = ..., predicted_s: _Optional[float] = ..., spread: _Optional[float] = ..., mean_service_s: _Optional[float] = ..., concurrency: _Optional[float] = ..., in_flight_own: _Optional[float] = ..., in_flight_others: _Optional[float] = ..., in_flight: _Optional[float] = ..., report_age_s: _Optional[float] = ..., ratio: _Optional[float] = ..., ratio_of_kind: _Optional[float] = ..., expected_s: _Optional[float] = ..., utilization: _Optional[float] = ..., errors: _Optional[float] = ..., cost_rtt_s: _Optional[float] = ..., cost_service_s: _Optional[float] = ..., cost_queue_s: _Optional[float] = ..., cost_utilization_s: _Optional[float] = ..., cost_congestion_s: _Optional[float] = ..., cost_class_congestion_s: _Optional[float] = ..., cost_error_s: _Optional[float] = ...) -> None: ...

class ModelVersion(_message.Message):
    __slots__ = ("name", "version", "manifest_sha256", "stage", "reason", "changed_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    manifest_sha256: str
    stage: ModelStage
    reason: str
    changed_at: _timestamp_pb2.Timestamp
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., manifest_sha256: _Optional[str] = ..., stage: _Optional[_Union[ModelStage, str]] = ..., reason: _Optional[str] = ..., changed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ScorerGate(_message.Message):
    __slots__ = ("service", "scorer", "version", "stage", "weight", "say", "gain", "steps", "in_conflict", "benched", "faults", "repaired_values", "conflicts", "runs", "skipped", "late", "run_s")
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    SCORER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SAY_FIELD_NUMBER: _ClassVar[int]
    GAIN_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    IN_CONFLICT_FIELD_NUMBER: _ClassVar[int]
    BENCHED_FIELD_NUMBER: _ClassVar[int]
    FAULTS_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_VALUES_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    RUN_S_FIELD_NUMBER: _ClassVar[int]
    service: str
    scorer: str
    version: str
    stage: str
    weight: float
    say: float
    gain: float
    steps: int
    in_conflict: bool
    benched: bool
    faults: int
    repaired_values: int
    conflicts: int
    runs: int
    skipped: int
    late: int
    run_s: float
    def __init__(self, service: _Optional[str] = ..., scorer: _Optional[str] = ..., version: _Optional[str] = ..., stage: _Optional[str] = ..., weight: _Optional[float] = ..., say: _Optional[float] = ..., gain: _Optional[float] = ..., steps: _Optional[int] = ..., in_conflict: _Optional[bool] = ..., benched: _Optional[bool] = ..., faults: _Optional[int] = ..., repaired_values: _Optional[int] = ..., conflicts: _Optional[int] = ..., runs: _Optional[int] = ..., skipped: _Optional[int] = ..., late: _Optional[int] = ..., run_s: _Optional[float] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("source", "channel", "serving", "candidate", "previous", "waiting", "frozen", "scorers", "history")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    SCORERS_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    source: str
    channel: str
    serving: ModelVersion
    candidate: ModelVersion
    previous: ModelVersion
    waiting: str
    frozen: bool
    scorers: _containers.RepeatedCompositeFieldContainer[ScorerGate]
    history: _containers.RepeatedCompositeFieldContainer[ModelVersion]
    def __init__(self, source: _Optional[str] = ..., channel: _Optional[str] = ..., serving: _Optional[_Union[ModelVersion, _Mapping]] = ..., candidate: _Optional[_Union[ModelVersion, _Mapping]] = ..., previous: _Optional[_Union[ModelVersion, _Mapping]] = ..., waiting: _Optional[str] = ..., frozen: _Optional[bool] = ..., scorers: _Optional[_Iterable[_Union[ScorerGate, _Mapping]]] = ..., history: _Optional[_Iterable[_Union[ModelVersion, _Mapping]]] = ...) -> None: ...

class SetModelRequest(_message.Message):
    __slots__ = ("action", "version")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    action: ModelAction
    version: str
    def __init__(self, action: _Optional[_Union[ModelAction, str]] = ..., version: _Optional[str] = ...) -> None: ...
