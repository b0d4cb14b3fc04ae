"""`operator.proto` is made from the operations, and the numbers of its fields never change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from google.protobuf.descriptor import FieldDescriptor

from late.api.grpc.operator_values import encoder, fields_of, rpc_of
from late.api.operator.operation import Operation
from late.api.operator.table import OPERATIONS
from late.api.operator.tasks import Cancel, Commanded, TaskResult
from late.control.views import Count
from late.v1 import operator_pb2
from scripts import operator_proto
from scripts.operator_proto import kept, lost, messages, numbered, proto

SERVICE = operator_pb2.DESCRIPTOR.services_by_name["Operator"]
NUMBERS = kept()
AGAIN = "run: make protos"


def test_the_file_is_as_the_operations() -> None:
    assert numbered(NUMBERS, messages(OPERATIONS)) == NUMBERS, AGAIN
    assert operator_proto.NUMBERS.read_text() == operator_proto.written(NUMBERS)
    assert operator_proto.PROTO.read_text() == proto(OPERATIONS, NUMBERS), AGAIN


def test_every_operation_has_its_method_and_no_method_is_of_none() -> None:
    assert [each.name for each in SERVICE.methods] == [rpc_of(each) for each in OPERATIONS], AGAIN


@pytest.mark.parametrize("each", OPERATIONS, ids=lambda each: each.name)
def test_the_generated_code_has_every_field(each: Operation) -> None:
    method = SERVICE.methods_by_name[rpc_of(each)]
    in_path = [part[1:-1] for part in each.path.split("/") if part.startswith("{")]
    asked = [*in_path, *(field.name for field in fields_of(each.takes))]
    assert [field.name for field in method.input_type.fields] == asked
    given = [field.encode_name for field in fields_of(each.gives)]
    assert [field.name for field in method.output_type.fields] == given


def test_no_number_or_time_loses_a_digit() -> None:
    """A double has 53 bits: what ends in `_us`, and what is an id or a place, is no double."""
    doubles = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)
    for message in operator_pb2.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            whole = field.name.endswith(("_us", "_id")) or field.name in (
                "position",
                "seq",
                "epoch",
            )
            assert not (whole and field.type in doubles), (message.name, field.name)
    encode = encoder(Commanded, operator_pb2.Commanded)
    assert encoder(Commanded, operator_pb2.Commanded) is encode, "made once in a process"
    found = operator_pb2.Commanded.FromString(encode(Commanded(command="a", due_at_us=2**62 + 1)))
    assert found.due_at_us == 2**62 + 1


def with_takes(takes: type[msgspec.Struct]) -> Sequence[Operation]:
    """The operations, of which `cancel_task` takes something else."""
    return [
        msgspec.structs.replace(each, takes=takes) if each.takes is Cancel else each
        for each in OPERATIONS
    ]


def numbers_of(text: str, message: str) -> dict[str, int]:
    """The numbers in one message of a proto file, by declaration."""
    body = text.partition(f"message {message} {{\n")[2].partition("}\n")[0]
    pairs = (line.strip(" ;").split(" = ") for line in body.splitlines() if " = " in line)
    return {declared.removeprefix("optional "): int(number) for declared, number in pairs}


def struct(**fields: Any) -> type[msgspec.Struct]:
    given = [(name, kind | None, None) for name, kind in fields.items()]
    return msgspec.defstruct("Cancel", given)  # type: ignore[arg-type]


def test_a_new_field_takes_a_new_number_wherever_it_stands() -> None:
    changed = with_takes(struct(why=str, group=str))
    after = numbered(NUMBERS, messages(changed))
    assert {name: places for name, places in after.items() if places != NUMBERS[name]} == {
        "CancelTaskRequest": [*NUMBERS["CancelTaskRequest"], "string why"]
    }
    found = numbers_of(proto(changed, after), "CancelTaskRequest")
    assert found == {"string task_id": 1, "string why": 3, "string group": 2}


def test_a_field_that_goes_leaves_its_number_to_nobody() -> None:
    gone = numbered(NUMBERS, messages(with_takes(struct())))
    assert gone == NUMBERS
    text = proto(with_takes(struct()), gone)
    assert "  reserved 2;\n" in text
    assert '  reserved "group";\n' in text
    later = with_takes(struct(why=str))
    after = numbered(gone, messages(later))
    assert numbers_of(proto(later, after), "CancelTaskRequest")["string why"] == 3
    back = numbered(after, messages(OPERATIONS))
    assert numbers_of(proto(OPERATIONS, back), "CancelTaskRequest")["string group"] == 2


def test_no_field_goes_or_is_renamed_unless_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "keep its name with msgspec.field(name=...), or list it in GONE of the script"
    assert lost(NUMBERS, messages(OPERATIONS)) == [], told
    renamed = msgspec.defstruct("Cancel", [("whose", str | None, None)])
    kept_name = msgspec.field(default=None, name="group")
    in_python = msgspec.defstruct("Cancel", [("whose", str | None, kept_name)])
    assert lost(NUMBERS, messages(with_takes(renamed))) == ["CancelTaskRequest: string group"]
    assert lost(NUMBERS, messages(with_takes(struct(group=int)))) != []
    assert lost(NUMBERS, messages(with_takes(in_python))) == []
    monkeypatch.setattr(operator_proto, "OPERATIONS", with_takes(renamed))
    with pytest.raises(SystemExit, match="CancelTaskRequest: string group"):
        operator_proto.main()
    monkeypatch.setattr(operator_proto, "GONE", {"CancelTaskRequest: string group"})
    assert lost(NUMBERS, messages(with_takes(renamed))) == []


def test_a_field_of_another_type_is_another_field() -> None:
    changed = with_takes(struct(group=int))
    text = proto(changed, numbered(NUMBERS, messages(changed)))
    assert numbers_of(text, "CancelTaskRequest") == {"string task_id": 1, "int64 group": 3}
    assert '"group"' not in text


def test_two_answers_of_one_name_are_refused() -> None:
    other = msgspec.defstruct("Count", [("n", str)])
    changed = [
        msgspec.structs.replace(OPERATIONS[0], gives=other),
        msgspec.structs.replace(OPERATIONS[1], gives=Count),
    ]
    with pytest.raises(ValueError, match="two messages are called Count"):
        messages(changed)


def test_open_json_is_a_text() -> None:
    encode = encoder(TaskResult, operator_pb2.TaskResult)
    for value, text in (({"a": 2**53 + 1}, '{"a":9007199254740993}'), ([None, 1.5], "[null,1.5]")):
        result = TaskResult(task_id="a", group="g", outcome="done", value=value)
        assert operator_pb2.TaskResult.FromString(encode(result)).value == text
