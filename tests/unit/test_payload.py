"""The quick look at a payload's bytes agrees with the plain rule, whatever the bytes are."""

from __future__ import annotations

import decimal
import enum
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, NewType

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import astuple

import late
from late.errors import DecodeError, InvalidPayload
from late.handler.signature import scalars
from late.model.task import Options, Record, TaskId
from late.payload.values import (
    DEPTH_MAX,
    KEYS_MAX,
    PAYLOAD_BYTES_MAX,
    SCALARS,
    _check,
    is_harmless,
    pack,
    pack_call,
)


def plainly(payload: bytes) -> bool:
    """The rule, slowly."""
    return (
        (
            len(payload) <= 2 * DEPTH_MAX  # too short to close what it opens: no JSON
            or payload.count(b"[") + payload.count(b"{") <= DEPTH_MAX
        )
        and payload.count(b":") <= KEYS_MAX
        and b"\\u0000" not in payload
        and re.search(rb"[0-9]{19}", payload) is None
    )


PIECES = [b"1234567890123456789", b"123456789012345678", b"0" * 19, b"9", b'"', b"_", b"\\u0000"]
PIECES += [b"{", b"[" * 40, b":", b":" * KEYS_MAX, b"\xff", b"\xd9\xa0" * 19]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=20)), max_size=6))
@example([b"123456789", b"1234567890"])
@example([b":" * KEYS_MAX, b":"])
def test_the_quick_look_is_the_plain_rule(pieces: list[bytes]) -> None:
    payload = b"".join(pieces)
    assert is_harmless(payload) == plainly(payload)


@pytest.mark.parametrize(("levels", "harmless"), [(DEPTH_MAX, True), (DEPTH_MAX + 1, False)])
def test_the_shortest_json_of_too_many_levels_is_looked_at(levels: int, harmless: bool) -> None:
    assert is_harmless(b"[" * levels + b"]" * levels) is harmless


@pytest.mark.parametrize(("digits", "harmless"), [(18, True), (19, False), (40, False)])
def test_nineteen_digits_in_a_row_are_looked_at(digits: int, harmless: bool) -> None:
    assert is_harmless(b'{"value":%s}' % (b"7" * digits)) is harmless


class Level(enum.IntEnum):
    ONE = 1


UserId = NewType("UserId", int)


class Given(msgspec.Struct):
    """Arguments of a call."""

    first: Any
    second: Any = msgspec.UNSET


LIMITS = [-(2**63) - 1, -(2**63), 2**64 - 1, 2**64, 10**40, -0.0, 1e300]
LIMITS += [float("nan"), float("inf"), decimal.Decimal("NaN"), decimal.Decimal("1.5")]
LIMITS += ["a\0b", "\\u0000", "null", "NaN", "1234567890123456789"]
LIMITS += [None, True, Level.ONE, [], ["\0"], {"k\0": 1}, {"k": float("nan")}, b"\0", msgspec.UNSET]
VALUES = st.one_of(st.sampled_from(LIMITS), st.text(max_size=5), st.integers(), st.floats())


@given(VALUES, VALUES)
def test_arguments_are_refused_by_the_walk_and_by_nothing_else(first: Any, second: Any) -> None:
    values = Given(first, second)
    try:
        _check(msgspec.to_builtins(values, builtin_types=(decimal.Decimal,), str_keys=True))
        fine = True
    except ValueError:
        fine = False
    try:
        packed = pack(values)
    except InvalidPayload:
        assert not fine
    else:
        assert fine
        assert packed == msgspec.json.encode(values)


class Declared(msgspec.Struct):
    """Arguments of a call, by parameters of every kind of type that has no say in their values."""

    number: int
    real: float
    text: str
    maybe: str | None
    either: int | bool | msgspec.UnsetType
    anything: Any
    named: UserId
    absent: int | msgspec.UnsetType = msgspec.UNSET


decode = msgspec.json.Decoder(Declared).decode
DECLARED = scalars(Declared)
assert DECLARED is not None
MOSTLY = [st.integers(), st.floats(), st.text(), st.none() | st.text(), st.booleans(), VALUES]
MOSTLY += [st.integers(), st.just(msgspec.UNSET)]


@given(st.tuples(*(st.one_of(each, each, each, VALUES) for each in MOSTLY)))
def test_a_call_is_packed_as_anything_is_and_certainly_decoded_as_it_was(values: Any) -> None:
    call = Declared(*values)
    try:
        payload, certain = pack_call(call, DECLARED)
    except InvalidPayload as refused:
        with pytest.raises(InvalidPayload, match=re.escape(str(refused))):
            pack(call)
        return
    assert payload == pack(call)
    if certain:
        again = astuple(decode(payload))
        assert [*map(repr, again)] == [*map(repr, values)]  # True is not 1, nor 1.0


def test_text_and_numbers_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = scalars(Given)
    assert kinds is not None
    given = [Given("Ada", 2**64 - 1), Given(1.5, None), Given(True)]
    others = ["a\\b", "a" * PAYLOAD_BYTES_MAX, float("nan"), 2**64, Level.ONE, [], b"Ada"]
    searched: list[Any] = []

    def search(values: Any, payload: bytes, form: object) -> bytes:
        searched.append(values.first)
        return payload

    monkeypatch.setattr("late.payload.values._searched", search)
    packed = [pack_call(call, kinds) for call in (*given, *map(Given, others))]
    assert [certain for _, certain in packed] == [True] * len(given) + [False] * len(others)
    assert [*map(repr, searched)] == [*map(repr, others)]
    assert packed[0][0] == msgspec.json.encode(given[0])


def test_types_that_have_a_say_in_their_values_are_not_certain() -> None:
    class Asked(msgspec.Struct):
        bounded: Annotated[int, msgspec.Meta(gt=0)]
        listed: int | list[int]
        levelled: Level
        literal: Literal["a"]
        required: msgspec.UnsetType

    assert scalars(Asked) == (frozenset(),) * 5
    assert pack_call(Asked(1, 1, 1, "a", msgspec.UNSET), (frozenset(),) * 5)[1] is False
    assert scalars(dict) is None
    assert DECLARED is not None
    assert DECLARED[4:] == (
        {int, bool},
        SCALARS - {msgspec.UnsetType},
        {int},
        {int, msgspec.UnsetType},
    )


SIMPLE = late.App("sqlite://")


@SIMPLE.task
def simple(n: int | None, note: str, flag: bool = False) -> None: ...


LONG = [2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**400]
TEXTS = ['"x"', r'"\u0000"', r'"\\u0000"', r'"\n"', '"\x00"', f'"{10**40}"', '"\ud800"']
OTHERS = ["1", "-1", "1e30", "1.0", "null", "true", "[1]", "[" * 70 + "]" * 70, '{"a":1}', "NaN"]
VALUES = st.sampled_from([*map(str, LONG), *TEXTS, *OTHERS])


@given(
    st.lists(
        st.tuples(st.sampled_from(["n", "note", "flag", "other", r"\u006e", r"n\u0000"]), VALUES),
        max_size=5,
    )
)
@example([("n", f"{2**64}"), ("note", '"x"')])
@example([("n", f"-{2**63 + 1}"), ("note", '"x"')])
@example([("n", f"{2**64 - 1}"), ("note", r'"\n"')])
@example([("n", "1"), ("note", r'"\u0000"')])
def test_the_short_way_accepts_what_the_long_way_does(pairs: list[tuple[str, str]]) -> None:
    """Arguments that can only be text or ints are not searched for long ints and levels."""
    text = "{" + ",".join(f'"{key}":{value}' for key, value in pairs) + "}"
    payload = text.encode(errors="surrogatepass")
    record = Record(0, 1, TaskId("t"), "q", simple.name, payload, None, None, 1, 1)
    assert outcome(lambda: simple.decode(record, None)) == outcome(
        lambda: simple.arguments(payload, "json")
    )
    options = Options(priority=1, unique_key="k")
    assert outcome(lambda: simple.decode(record, options)) == outcome(
        lambda: simple.decode(record, None)
    )


def outcome(decode: Callable[[], object]) -> object:
    """Return what `decode` returns, or why it refuses."""
    try:
        return decode()
    except DecodeError as error:
        return error.reason
