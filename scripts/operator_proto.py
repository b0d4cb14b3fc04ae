"""Writes `proto/late/v1/operator.proto` from the operations: `python -m scripts.operator_proto`.

Each operation in `late/api/operator/` is a method there, with the field names that it has over
HTTP. The number of a field is its place in `operator_fields.json`, to whose lists fields are only
added: one that is gone keeps its place, and nobody gets its number. `make protos` runs this first.

A field that is renamed in Python keeps its name here and over HTTP with `msgspec.field(name=...)`.
Without that it is one that is gone and one that is new, and clients of before lose it without a
word: so a field goes only if it is in `GONE`.
"""

from __future__ import annotations

import ast
import functools
import inspect as source
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import inspect

from late.api.grpc.operator_values import fields_of, is_open, path_names, rpc_of, without_null
from late.api.http.operators_openapi import role_of
from late.api.operator.operation import Nothing, Operation
from late.api.operator.table import OPERATIONS

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto" / "late" / "v1" / "operator.proto"
NUMBERS = PROTO.with_name("operator_fields.json")
WIDTH = 100
GONE: frozenset[str] = frozenset()
"""Fields that clients of before do without, each as `Message: type name`; the changelog says so."""

HEAD = """\
// What operators ask and change: the commands of `late`, as over HTTP. Made from
// late/api/operator/ by `make protos`; do not edit it.
//
// Authentication and status codes are those of `late.v1.Queue`, and the texts of errors are those
// of HTTP. What changes something takes `late serve --api-changes`.
//   names      1 to 128 letters, digits and . _ : -
//   *_us       microseconds since the Unix epoch, by the database's clock
//   JSON       a text in JSON: numbers keep all of their digits
//   not set    None in the texts below, null over HTTP; so is an empty list or map
// A request with a field that the server does not know is refused with INVALID_ARGUMENT.
syntax = "proto3";

package late.v1;

import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
"""


class Field(NamedTuple):
    """One field of a message."""

    name: str
    kind: str
    """Its type, with `repeated`: what its number stands for."""
    optional: bool
    comment: str

    @property
    def declared(self) -> str:
        """Its type and name, as in `operator_fields.json`."""
        return f"{self.kind} {self.name}"


class Message(NamedTuple):
    """One message."""

    comment: str
    fields: Sequence[Field]


Numbers = Mapping[str, Sequence[str]]
"""The declared fields of each message; the number of a field is its place, from 1 on."""


def kind_of(kind: inspect.Type) -> str:
    """Return the type of a field as the proto file has it."""
    kind = without_null(kind)
    if is_open(kind):
        return "string"
    match kind:
        case inspect.StrType() | inspect.LiteralType():
            return "string"
        case inspect.IntType():
            return "int64"
        case inspect.FloatType():
            return "double"
        case inspect.BoolType():
            return "bool"
        case inspect.DateTimeType():
            return "google.protobuf.Timestamp"
        case inspect.UnionType():
            return "google.protobuf.Value"
        case inspect.StructType():
            return kind.cls.__name__
        case inspect.ListType() | inspect.VarTupleType():
            return f"repeated {kind_of(kind.item_type)}"
        case inspect.TupleType() if len({kind_of(each) for each in kind.item_types}) == 1:
            return f"repeated {kind_of(kind.item_types[0])}"
        case inspect.DictType():
            return f"map<{kind_of(kind.key_type)}, {kind_of(kind.value_type)}>"
    raise TypeError(f"no proto type for {kind}")


def requests(operations: Iterable[Operation]) -> Iterator[tuple[str, Message]]:
    """Make the message of each request: the names in its path, and what the operation takes."""
    for each in operations:
        path = [Field(name, "string", False, "Required.") for name in path_names(each)]
        fields = [*path, *(_asked(each.takes, field) for field in fields_of(each.takes))]
        told = "" if each.takes is Nothing else _paragraph(each.takes.__doc__)
        yield f"{rpc_of(each)}Request", Message(told, fields)


def answers(kinds: Iterable[inspect.Type]) -> Iterator[tuple[str, Message]]:
    """Make the messages of answers, and of what is in them."""
    for kind in map(without_null, kinds):
        if isinstance(kind, inspect.ListType | inspect.VarTupleType):
            yield from answers([kind.item_type])
        elif isinstance(kind, inspect.StructType):
            fields = [_given(kind.cls, field) for field in kind.fields]
            yield kind.cls.__name__, Message(_paragraph(kind.cls.__doc__), fields)
            yield from answers(field.type for field in kind.fields)


def messages(operations: Sequence[Operation]) -> dict[str, Message]:
    """Make all messages, by name: requests first."""
    found = dict(requests(operations))
    for name, message in answers(inspect.type_info(each.gives) for each in operations):
        if found.setdefault(name, message) != message:
            raise ValueError(f"two messages are called {name}")
    return found


def numbered(old: Numbers, made: Mapping[str, Message]) -> dict[str, list[str]]:
    """Return the fields with their places: those of before keep theirs, also if they are gone."""
    found = {name: list(fields) for name, fields in old.items()}
    for name, message in made.items():
        places = found.setdefault(name, [])
        places += [each.declared for each in message.fields if each.declared not in places]
    return dict(sorted(found.items()))


def lost(numbers: Numbers, made: Mapping[str, Message]) -> list[str]:
    """Return the fields that are gone, as in `GONE`, and that are not there."""
    live = {f"{name}: {each.declared}" for name, message in made.items() for each in message.fields}
    known = {f"{name}: {declared}" for name, fields in numbers.items() for declared in fields}
    return sorted(known - live - GONE)


def proto(operations: Sequence[Operation], numbers: Numbers) -> str:
    """Return the text of the proto file."""
    parts = [HEAD, _service(operations)]
    parts += [_text(name, each, numbers[name]) for name, each in messages(operations).items()]
    return "\n".join(parts)


def _asked(struct: type[Any], field: inspect.Field) -> Field:
    """Make a field of a request. A text or a list that has to be given is never empty; all else has
    presence, so that a number that is left out is no zero."""
    kind, bare = kind_of(field.type), without_null(field.type)
    told = ["Required." if field.required else "", _told(struct, field.name), _values(bare)]
    if isinstance(field.default, int | float) and field.default:
        told.append(f"{_figure(field.default)} if not set.")
    plain = kind.startswith(("repeated", "map", "google")) or (kind == "string" and field.required)
    return Field(field.encode_name, kind, not plain, " ".join(filter(None, told)))


def _given(struct: type[Any], field: inspect.Field) -> Field:
    kind, bare = kind_of(field.type), without_null(field.type)
    nullable = isinstance(field.type, inspect.UnionType | inspect.AnyType)
    message = kind.startswith(("repeated", "map", "google")) or isinstance(bare, inspect.StructType)
    told = [_told(struct, field.name), _values(bare)]
    return Field(field.encode_name, kind, nullable and not message, " ".join(filter(None, told)))


def _values(kind: inspect.Type) -> str:
    """Say which values a field has."""
    if is_open(kind):
        return "JSON."
    if isinstance(kind, inspect.LiteralType):
        return f"One of {', '.join(map(str, kind.values))}."
    if isinstance(kind, inspect.IntType | inspect.FloatType) and kind.ge is not None:
        return f"{_figure(kind.ge)}..{'' if kind.le is None else _figure(kind.le)}."
    return ""


def _figure(value: float) -> str:
    return f"{int(value) if float(value).is_integer() else value:,}"


@functools.cache
def _attributes(struct: type[Any]) -> dict[str, str]:
    """Return the docstrings of a struct's fields, which only its source has."""
    try:
        (body,) = ast.parse(textwrap.dedent(source.getsource(struct))).body
    except OSError:  # made by a test, without a source
        return {}
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = ast.literal_eval(text.value)
    return found


def _told(struct: type[Any], name: str) -> str:
    return _paragraph(_attributes(struct).get(name))


def _paragraph(docstring: str | None) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join(source.cleandoc(docstring or "").partition("\n\n")[0].split())


def _service(operations: Sequence[Operation]) -> str:
    calls = []
    names = {rpc_of(each) for each in operations}
    for each in operations:
        name, gives = rpc_of(each), each.gives.__name__
        # Of a name that is a method too, protoc finds the method.
        gives = f".late.v1.{gives}" if gives in names else gives
        told = _comment(f"{each.summary} {role_of(each)} As {_like(each)}.", 2)
        calls.append(f"{told}  rpc {name}({name}Request) returns ({gives});\n")
    return "service Operator {\n" + "\n".join(calls) + "}\n"


def _like(operation: Operation) -> str:
    commands = [f"`late {each}`" for each in operation.commands]
    return ", ".join([*commands, f"`{operation.method} {operation.path}`"])


def _text(name: str, message: Message, places: Sequence[str]) -> str:
    lines = [_comment(message.comment, 0), f"message {name} {{\n"]
    names = {each.name for each in message.fields}
    live = {each.declared for each in message.fields}
    for number, declared in enumerate(places, 1):
        if declared not in live:
            gone = declared.rpartition(" ")[2]
            lines.append(f"  reserved {number};\n")
            lines += [] if gone in names else [f'  reserved "{gone}";\n']
    for each in message.fields:
        label = "optional " if each.optional else ""
        number = places.index(each.declared) + 1
        lines.append(f"{_comment(each.comment, 2)}  {label}{each.declared} = {number};\n")
    return "".join([*lines, "}\n"])


def _comment(text: str, indent: int) -> str:
    begin = f"{' ' * indent}// "
    # What is in backticks stays on one line.
    kept = re.sub("`[^`]*`", lambda each: each[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(kept, WIDTH - len(begin), break_on_hyphens=False, break_long_words=False)
    return "".join(f"{begin}{line}\n" for line in lines).replace("\0", " ")


def kept() -> dict[str, list[str]]:
    """Read the fields with their places as they are kept."""
    found: dict[str, list[str]] = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    return found


def written(numbers: Numbers) -> str:
    """Return the text of the file that keeps the places."""
    return json.dumps(numbers, indent=1) + "\n"


def main() -> None:
    """Write both files."""
    made = messages(OPERATIONS)
    if gone := lost(kept(), made):
        raise SystemExit(
            f"clients of before lose {', '.join(gone)}: keep a renamed field's name with"
            " msgspec.field(name=...), or list what is to go in GONE"
        )
    numbers = numbered(kept(), made)
    NUMBERS.write_text(written(numbers))
    PROTO.write_text(proto(OPERATIONS, numbers))


if __name__ == "__main__":
    main()
