"""What the parts of the policy schema are made of: fields read by a function, and strictness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SecretStr,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from attnroute.policy import scalars

__all__ = ["MASK", "SECRET_ERROR", "Parsed", "Secret", "Strict", "duration", "size"]

_MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, eq=False)
class Parsed:
    """A field written as text and read by a function: tells pydantic how to read and write it."""

    parse: Callable[[Any], Any]
    schema: Mapping[str, Any]
    render: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(
        self, _source: Any, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        serialization = None
        if self.render is not None:
            serialization = core_schema.plain_serializer_function_ser_schema(
                self.render, when_used="json"
            )
        return core_schema.no_info_plain_validator_function(self.parse, serialization=serialization)

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return dict(self.schema)


def duration(least: timedelta, most: timedelta, *, step: timedelta = _MS) -> Parsed:
    """A duration from least to most in whole steps: finer ones would be lost on the way down."""

    def parse(value: object) -> timedelta:
        parsed = scalars.parse_duration(value)
        if not least <= parsed <= most:
            low, high = scalars.format_duration(least), scalars.format_duration(most)
            raise ValueError(f"expected a duration from `{low}` to `{high}`")
        if parsed % step:
            raise ValueError(f"the finest step here is `{scalars.format_duration(step)}`")
        return parsed

    limits = f"{scalars.format_duration(least)} to {scalars.format_duration(most)}"
    schema: dict[str, Any] = {"type": "string", "pattern": scalars.DURATION_PATTERN}
    if not least:
        schema = {"anyOf": [schema, {"enum": [0, "0"]}]}
    schema["x-limits"] = limits
    return Parsed(parse, schema, scalars.format_duration)


def size(least: int, most: int) -> Parsed:
    def parse(value: object) -> int:
        parsed = scalars.parse_size(value)
        if not least <= parsed <= most:
            low, high = scalars.format_size(least), scalars.format_size(most)
            raise ValueError(f"expected a size from `{low}` to `{high}`")
        return parsed

    schema = {
        "anyOf": [
            {"type": "string", "pattern": scalars.SIZE_PATTERN},
            {"type": "integer", "minimum": least, "maximum": most},
        ],
        "x-limits": f"{scalars.format_size(least)} to {scalars.format_size(most)}",
    }
    return Parsed(parse, schema, scalars.format_size)


MASK = "(secret)"
"""What is shown instead of a secret."""

SECRET_ERROR = "secret_error"  # noqa: S105
"""Type of the validation error of a secret: whoever tells of it must not quote what was found."""


def _secret(value: object) -> SecretStr:
    if isinstance(value, str) and value and value.isprintable() and len(value) <= 8_192:
        return SecretStr(value)
    raise PydanticCustomError(SECRET_ERROR, "expected printable text; put it in quotes")


Secret = Annotated[
    SecretStr,
    Parsed(_secret, {"type": "string", "minLength": 1, "writeOnly": True}, lambda _: MASK),
]
"""Text that nobody gets to see again: masked in the effective policy, in messages and in logs."""


class Strict(BaseModel):
    """What all parts share: nothing unknown, nothing converted, nothing changed afterwards."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        json_schema_extra={"patternProperties": {"^x-": {}}},
    )

    RESERVED: ClassVar[Mapping[str, str]] = {}
    """Keys of later versions, and which one brings them: known, so that the message says so."""

    RESERVED_INSTEAD: ClassVar[str] = "remove it"
    """What to do until then."""

    @model_validator(mode="before")
    @classmethod
    def _drop_free_keys(cls, data: Any) -> Any:
        """Keys that begin with `x-` are the operator's own, for anchors and for other tools."""
        if isinstance(data, dict) and any(key.startswith("x-") for key in data):
            return {key: value for key, value in data.items() if not key.startswith("x-")}
        return data
