"""Where the endpoints of a service come from, as the operator writes it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from attnroute.policy import scalars
from attnroute.policy.fields import Parsed, Strict, duration
from attnroute.types import EndpointSpec

__all__ = [
    "DnsSource",
    "EndpointFile",
    "EndpointSource",
    "EndpointSources",
    "StaticEndpoint",
]

_MS = timedelta(milliseconds=1)
_HOUR = timedelta(hours=1)


def _endpoint_address(value: object) -> str:
    address = scalars.parse_address(value)
    if scalars.port_of(address) == 0:
        raise ValueError("port 0 cannot be dialled; write the endpoint's port")
    return address


def _server_address(value: object) -> str:
    address = scalars.parse_address(value)
    if not scalars.port_of(address):
        raise ValueError("expected `ip:port`, such as `10.0.0.2:53`")
    return address


def _weight(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1_000_000:
        return float(value)
    raise ValueError("expected a number from 0 to 1000000; 0 takes no new calls")


def _file_path(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("expected the path of a file; put it in quotes")
    return value


_ADDRESS_SCHEMA = {"type": "string", "pattern": r"^(unix:/.+|.+:[0-9]{1,5})$"}
_TEXT_SCHEMA = {"type": "string", "maxLength": 1024}

EndpointAddress = Annotated[str, Parsed(_endpoint_address, _ADDRESS_SCHEMA)]
ServerAddress = Annotated[
    str, Parsed(_server_address, {"type": "string", "pattern": "^.+:[0-9]{1,5}$"})
]
DnsName = Annotated[
    str, Parsed(scalars.parse_dns_name, {"type": "string", "pattern": scalars.DNS_NAME_PATTERN})
]
FilePath = Annotated[str, Parsed(_file_path, {"type": "string", "minLength": 1})]
Text = Annotated[str, Parsed(scalars.parse_text, _TEXT_SCHEMA)]
Weight = Annotated[float, Parsed(_weight, {"type": "number", "minimum": 0, "maximum": 1_000_000})]


class StaticEndpoint(Strict):
    """One endpoint. The short form is its address alone."""

    address: EndpointAddress = Field(description="`ip:port` or `unix:/path`.")
    weight: Weight = Field(
        default=1.0, description="Static weight, relative to the others; 0 takes no new calls."
    )
    zone: Text = Field(default="", description="Zone, empty where unknown.")
    labels: dict[Text, Text] = Field(default_factory=dict, description="Free labels.")
    priority: int = Field(
        default=0,
        ge=0,
        le=65_535,
        description="Calls go to the lowest number of which at least `panic_threshold` of the "
        "endpoints are well; the others stand by.",
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"address": data} if isinstance(data, str) else data

    def spec(self) -> EndpointSpec:
        """As discovery hands it on."""
        return EndpointSpec(self.address, self.weight, self.zone, self.labels, self.priority)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


class DnsSource(Strict):
    """The addresses of a name. The short form is the name alone."""

    name: DnsName = Field(
        description="`host:port` for the addresses of a name (A and AAAA records), or an SRV name "
        "that begins with `_`: its targets, with their ports, weights and priorities."
    )
    server: ServerAddress | None = Field(
        default=None,
        description="`ip:port` of the DNS server that is asked; default those of the system, with "
        "its search domains.",
    )
    timeout: Annotated[timedelta, duration(100 * _MS, timedelta(minutes=1))] = Field(
        default=timedelta(seconds=3), description="Wait for a whole answer."
    )
    on_empty: Literal["hold", "empty"] = Field(
        default="hold",
        description="What an answer without records does, or that there is no such name: `hold` "
        "leaves the last set in force for `hold_limit`, `empty` empties the service.",
    )
    hold_limit: Annotated[timedelta, duration(timedelta(seconds=1), 24 * 7 * _HOUR)] = Field(
        default=_HOUR,
        description="How long answers without records leave the last set in force.",
    )
    allow_loopback: bool = Field(
        default=False, description="Whether loopback addresses in an answer are believed."
    )

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        short = {"type": "string", "pattern": scalars.DNS_NAME_PATTERN}
        return {"anyOf": [short, handler(schema)]}


class EndpointSource(Strict):
    """One source of endpoints: exactly one of `static`, `file` and `dns`."""

    model_config = ConfigDict(
        json_schema_extra={
            "patternProperties": {"^x-": {}},
            "oneOf": [{"required": [key]} for key in ("static", "file", "dns")],
        }
    )
    RESERVED: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("kubernetes", "xds", "consul", "eureka"), "version 0.2"
    )
    RESERVED_INSTEAD: ClassVar[str] = "until then write `static`, `file` or `dns`"

    static: tuple[StaticEndpoint, ...] | None = Field(
        default=None, description="The endpoints themselves."
    )
    file: FilePath | None = Field(
        default=None,
        description="A YAML or JSON file with `endpoints: [...]`, followed while the sidecar runs; "
        "relative to the policy file.",
    )
    dns: DnsSource | None = Field(default=None, description="A name in DNS.")
    refresh: Annotated[timedelta, duration(100 * _MS, _HOUR)] | None = Field(
        default=None,
        description="How often DNS is asked; default: when the records expire, within 1 s and "
        "5 min. How often the file is looked at besides the system's own change events; default "
        "5 s.",
    )


def _as_list(value: Any) -> Any:
    return (value,) if isinstance(value, dict | EndpointSource) else value


class _OneOrMore:
    """Tells editors that one source may stand without a list."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        several = handler(schema)
        return {"anyOf": [several["items"], several]}


EndpointSources = Annotated[
    tuple[EndpointSource, ...],
    Field(min_length=1, max_length=16),
    BeforeValidator(_as_list),
    _OneOrMore,
]


class EndpointFile(Strict):
    """What a file of endpoints holds."""

    endpoints: tuple[StaticEndpoint, ...] = Field(
        description="Every endpoint of the service; an empty list empties it."
    )
