"""Values of operations as messages of `operator.proto`, and back. Pure.

A value has the field names that it has in JSON. What is open JSON there (a payload, a result) is
text in JSON here, so that no number loses a digit. Where JSON has null, a field is not set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from functools import cache
from typing import Any

import msgspec
from google.protobuf.struct_pb2 import Value
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.unknown_fields import UnknownFieldSet
from msgspec import inspect

from late.api import schemas
from late.api.errors import BadRequest
from late.api.operator.operation import Operation

_IN_PATH = re.compile(r"\{(\w+)\}")


def rpc_of(operation: Operation) -> str:
    """Return the name of an operation's method, such as `PauseGroup`."""
    return operation.name[0].upper() + operation.name[1:]


def path_names(operation: Operation) -> list[str]:
    """Return the names in an operation's path; its request begins with them."""
    return _IN_PATH.findall(operation.path)


@cache
def fields_of(struct: type[msgspec.Struct]) -> Sequence[inspect.Field]:
    """Return the fields of a struct."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info.fields


def without_null(kind: inspect.Type) -> inspect.Type:
    """Return the type without its null; several others stay a union."""
    if not isinstance(kind, inspect.UnionType):
        return kind
    others = tuple(each for each in kind.types if not isinstance(each, inspect.NoneType))
    return others[0] if len(others) == 1 else inspect.UnionType(others)


def is_open(kind: inspect.Type) -> bool:
    """Tell whether a type is open JSON, which is a text here."""
    if isinstance(kind, inspect.DictType):
        return is_open(kind.value_type)
    return isinstance(kind, inspect.AnyType | inspect.RawType | inspect.CustomType)


def request_of(operation: Operation, message: Any) -> tuple[dict[str, str], Any]:
    """Read a request: the names in the operation's path, and its value.

    Raises:
        BadRequest: a value is wrong, or a field is not known here. A filter that is left out unseen
            would match more.
    """
    if len(UnknownFieldSet(message)):
        raise BadRequest("the message has a field that this server does not know")
    given = {field.name: _read(field.name, value) for field, value in message.ListFields()}
    path = {name: given.pop(name, "") for name in path_names(operation)}
    for field in fields_of(operation.takes):
        if isinstance(field.type, inspect.RawType) and field.name in given:
            given[field.name] = _raw(field.name, given[field.name])
    try:
        return path, msgspec.convert(given, operation.takes)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)[:200]) from None


def _raw(name: str, text: str) -> msgspec.Raw:
    try:
        return schemas.parse(text.encode(), msgspec.Raw)
    except BadRequest as error:
        raise BadRequest(f"{name}: {error}") from None


def _read(name: str, value: Any) -> Any:
    if isinstance(value, Timestamp):
        try:
            return value.ToDatetime(tzinfo=UTC)
        except (ValueError, OverflowError):
            raise BadRequest(f"{name} is not a time") from None
    if isinstance(value, Mapping):
        return {key: _scalar(f"{name}: {key[:128]!r}", each) for key, each in value.items()}
    return value if isinstance(value, bool | int | float | str) else list(value)


def _scalar(name: str, value: Value) -> int | float | bool | str | None:
    match value.WhichOneof("kind"):
        case "null_value":
            return None
        case "bool_value":
            return value.bool_value
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "string_value":
            return value.string_value
        case _:
            raise BadRequest(f"{name} is not a number, a text, true, false or null")


Encode = Callable[[object], bytes]


@cache
def encoder(gives: type[msgspec.Struct], message: type[Any]) -> Encode:
    """Make the function that encodes an answer of the type `gives` as a `message`."""
    change = _change(inspect.type_info(gives))

    def encode(value: object) -> bytes:
        plain = msgspec.to_builtins(value)
        encoded: bytes = message(**(plain if change is None else change(plain))).SerializeToString()
        return encoded

    return encode


def _change(kind: inspect.Type) -> Callable[[Any], Any] | None:
    """Return what changes a plain value for its message; None if the message takes it as it is."""
    kind = without_null(kind)
    if is_open(kind):
        return lambda value: msgspec.json.encode(value).decode()
    if isinstance(kind, inspect.UnionType):
        return _value_of
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        each = _change(kind.item_type)
        return None if each is None else lambda values: [each(value) for value in values]
    if not isinstance(kind, inspect.StructType):
        return None
    changes = {field.encode_name: _change(field.type) for field in kind.fields}
    needed = {name: change for name, change in changes.items() if change is not None}

    def in_struct(value: dict[str, Any]) -> dict[str, Any]:
        for name, change in needed.items():
            if value.get(name) is not None:
                value[name] = change(value[name])
        return value

    return in_struct if needed else None


def _value_of(value: float | str | bool) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"bool_value": value}
    return {"string_value" if isinstance(value, str) else "number_value": value}
