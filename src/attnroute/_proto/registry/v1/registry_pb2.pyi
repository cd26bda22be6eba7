from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BundleRef(_message.Message):
    __slots__ = ("name", "version", "manifest_sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    manifest_sha256: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., manifest_sha256: _Optional[str] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("path", "size_bytes", "sha256")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    path: str
    size_bytes: int
    sha256: str
    def __init__(self, path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class Bundle(_message.Message):
    __slots__ = ("ref", "files", "feature_schema", "created_s")
    REF_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    FEATURE_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    CREATED_S_FIELD_NUMBER: _ClassVar[int]
    ref: BundleRef
    files: _containers.RepeatedCompositeFieldContainer[File]
    feature_schema: str
    created_s: float
    def __init__(self, ref: _Optional[_Union[BundleRef, _Mapping]] = ..., files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., feature_schema: _Optional[str] = ..., created_s: _Optional[float] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("bundles", "channels")
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    bundles: _containers.RepeatedCompositeFieldContainer[Bundle]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelState]
    def __init__(self, bundles: _Optional[_Iterable[_Union[Bundle, _Mapping]]] = ..., channels: _Optional[_Iterable[_Union[ChannelState, _Mapping]]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("ref", "path", "offset_bytes")
    REF_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    ref: BundleRef
    path: str
    offset_bytes: int
    def __init__(self, ref: _Optional[_Union[BundleRef, _Mapping]] = ..., path: _Optional[str] = ..., offset_bytes: _Optional[int] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("offset_bytes", "data")
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset_bytes: int
    data: bytes
    def __init__(self, offset_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("name", "channel")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    channel: str
    def __init__(self, name: _Optional[str] = ..., channel: _Optional[str] = ...) -> None: ...

class ChannelState(_message.Message):
    __slots__ = ("name", "channel", "generation", "bundle", "frozen", "reason", "previous")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    name: str
    channel: str
    generation: int
    bundle: BundleRef
    frozen: bool
    reason: str
    previous: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., channel: _Optional[str] = ..., generation: _Optional[int] = ..., bundle: _Optional[_Union[BundleRef, _Mapping]] = ..., frozen: _Optional[bool] = ..., reason: _Optional[str] = ..., previous: _Optional[_Iterable[str]] = ...) -> None: ...

class SetChannelRequest(_message.Message):
    __slots__ = ("name", "channel", "bundle", "expected_generation", "frozen", "reason")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GENERATION_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    channel: str
    bundle: BundleRef
    expected_generation: int
    frozen: bool
    reason: str
    def __init__(self, name: _Optional[str] = ..., channel: _Optional[str] = ..., bundle: _Optional[_Union[BundleRef, _Mapping]] = ..., expected_generation: _Optional[int] = ..., frozen: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...
