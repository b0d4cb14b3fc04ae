"""The table of `reliability` 3.2: what bad input must get, column "Python enqueue", and the rows of
column "worker" that decoding decides. Each case names its row.

No case may reach the database: the connection here records every statement that is tried.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from copy import copy
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import late
from late.errors import DecodeError, InvalidTask
from late.model.task import Options, Record
from late.payload.codec import Signed

app = late.App("sqlite:///unused.db", codec="json")
loose = late.App("sqlite:///unused.db", strict=False)


@app.task
def anything(value: Any, other: Any = None) -> None: ...


@app.task(codec="msgpack")
def packed(value: Any) -> None: ...


@app.task
def typed(number: int, ratio: float, when: datetime) -> None: ...


class Tx(sqlite3.Connection):
    """A connection that must not be used."""


@pytest.fixture
def tx() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", factory=Tx)
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    yield connection
    connection.close()
    assert statements == []


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


class BadZone(tzinfo):
    def utcoffset(self, when: datetime | None) -> timedelta:
        raise RuntimeError("no")


endless: list[Any] = []
endless.append(endless)
now = datetime.now(UTC)
Case = Callable[[Any], Any]

CASES: list[tuple[str, str, type[Exception], Case]] = [
    (row, what, error, case)
    for row, error, cases in [
        (
            "payload > hard limit",
            late.PayloadTooLarge,
            {
                "text": lambda tx: anything.enqueue(tx, "x" * 1_048_576),
                "many": lambda tx: anything.enqueue(tx, ["abc"] * 200_000),
                "msgpack": lambda tx: packed.enqueue(tx, b"x" * 1_048_577),
                "by name": lambda tx: loose.send(tx, "any", {"a": "x" * 1_048_577}),
                "headers": lambda tx: anything.options(headers={"a": "x" * 8192}),
            },
        ),
        (
            "not JSON / depth bomb / NaN / NUL / surrogate",
            late.InvalidPayload,
            {
                "object": lambda tx: anything.enqueue(tx, object()),
                "complex": lambda tx: anything.enqueue(tx, 1j),
                "depth": lambda tx: anything.enqueue(tx, nested(64)),
                "depth 5000": lambda tx: anything.enqueue(tx, nested(5000)),
                "endless": lambda tx: anything.enqueue(tx, endless),
                "keys": lambda tx: anything.enqueue(tx, dict.fromkeys(map(str, range(10_000)))),
                "nan": lambda tx: anything.enqueue(tx, math.nan),
                "inner inf": lambda tx: anything.enqueue(tx, {"a": [1.0, -math.inf]}),
                "decimal nan": lambda tx: anything.enqueue(tx, Decimal("NaN")),
                "decimal inf": lambda tx: anything.enqueue(tx, Decimal("-Infinity")),
                "nul": lambda tx: anything.enqueue(tx, "a\0b"),
                "nul in key": lambda tx: anything.enqueue(tx, {"a\0": 1}),
                "surrogate": lambda tx: anything.enqueue(tx, "\ud800"),
                "surrogate key": lambda tx: anything.enqueue(tx, {"\udfff": 1}),
                "2**64": lambda tx: anything.enqueue(tx, 2**64),
                "-2**63-1": lambda tx: anything.enqueue(tx, -(2**63) - 1),
                "5000 digits": lambda tx: anything.enqueue(tx, 10**5000),
                "msgpack nan": lambda tx: packed.enqueue(tx, math.nan),
                "msgpack nul": lambda tx: packed.enqueue(tx, "\0"),
                "msgpack depth": lambda tx: packed.enqueue(tx, nested(64)),
                "msgpack 2**64": lambda tx: packed.enqueue(tx, 2**64),
                "type": lambda tx: typed.enqueue(tx, "1", 1.0, now),  # type: ignore[call-overload]
                "float nan": lambda tx: typed.enqueue(tx, 1, math.nan, now),
                "missing": lambda tx: typed.enqueue(tx, 1),  # type: ignore[call-overload]
                "unknown": lambda tx: app.send(tx, "anything", {"value": 1, "nope": 1}),
                "twice": lambda tx: anything.enqueue(tx, 1, value=1),  # type: ignore[call-overload]
                "no mapping": lambda tx: app.send(tx, "anything", [1]),  # type: ignore[call-overload]
                "keys no text": lambda tx: loose.send(tx, "any", {1: 1}),  # type: ignore[call-overload]
                "header nul": lambda tx: anything.options(headers={"a": "\0"}),
                "header type": lambda tx: anything.options(headers={"a": 1}),  # type: ignore[typeddict-item]
                "header surrogate": lambda tx: anything.options(headers={"a": "\ud800"}),
                "header list": lambda tx: anything.options(headers=["a"]),  # type: ignore[typeddict-item]
            },
        ),
        (
            "unknown handler",
            late.UnknownTask,
            {"strict": lambda tx: app.send(tx, "nobody", {})},
        ),
        (
            "ETA > 366 d, NaN, year 9999, naive datetime",
            late.InvalidSchedule,
            {
                "delay": lambda tx: anything.options(delay=366 * 86_400 + 1),
                "delay huge": lambda tx: anything.options(delay=10**400),
                "delay nan": lambda tx: anything.options(delay=math.nan),
                "delay inf": lambda tx: anything.options(delay=math.inf),
                "delay -inf": lambda tx: anything.options(delay=-math.inf),
                "delay text": lambda tx: anything.options(delay="1"),  # type: ignore[typeddict-item]
                "delay bool": lambda tx: anything.options(delay=True),
                "delay timedelta": lambda tx: anything.options(delay=timedelta.max),
                "at far": lambda tx: anything.options(at=now + timedelta(days=367)),
                "at 9999": lambda tx: anything.options(at=datetime.max.replace(tzinfo=UTC)),
                "at 9999 west": lambda tx: anything.options(
                    at=datetime.max.replace(tzinfo=timezone(-timedelta(hours=23)))
                ),
                "at naive": lambda tx: anything.options(at=datetime(2030, 1, 1)),
                "at bad zone": lambda tx: anything.options(
                    at=datetime(2030, 1, 1, tzinfo=BadZone())
                ),
                "at number": lambda tx: anything.options(at=1.0),  # type: ignore[typeddict-item]
                "delay and at": lambda tx: anything.options(at=now, delay=1),
                "expires naive": lambda tx: anything.options(expires=datetime(2030, 1, 1)),
                "expires nan": lambda tx: anything.options(expires=math.nan),
                "expires 0": lambda tx: anything.options(expires=0),
                "expires before due": lambda tx: anything.options(delay=10, expires=10),
                "snooze": lambda tx: late.Snooze(math.nan),
                "retry after": lambda tx: late.Retry(after_s=-1),
            },
        ),
        (
            "max_attempts < 1 or > 1,000; backoff 0 or > 7 d",
            late.InvalidPolicy,
            {
                "0": lambda tx: late.Retry(max_attempts=0),
                "1001": lambda tx: late.Retry(max_attempts=1001),
                "bool": lambda tx: late.Retry(max_attempts=True),
                "float": lambda tx: late.Retry(max_attempts=2.0),  # type: ignore[arg-type]
                "base 0": lambda tx: late.Retry(base=0),
                "base > 7 d": lambda tx: late.Retry(base=timedelta(days=7, seconds=1)),
                "base nan": lambda tx: late.Retry(base=math.nan),
                "cap": lambda tx: late.Retry(cap=timedelta(days=8)),
                "cap below base": lambda tx: late.Retry(base=10, cap=9),
                "factor": lambda tx: late.Retry(factor=0.5),
                "factor nan": lambda tx: late.Retry(factor=math.nan),
                "factor huge": lambda tx: late.Retry(factor=10**400),
                "jitter": lambda tx: late.Retry(jitter="some"),  # type: ignore[arg-type]
                "deadline": lambda tx: late.Retry(deadline=0),
                "no exception": lambda tx: late.Retry(retry_on=("x",)),  # type: ignore[arg-type]
                "priority": lambda tx: anything.options(priority=101),
                "priority low": lambda tx: anything.options(priority=-101),
                "priority float": lambda tx: anything.options(priority=1.5),  # type: ignore[typeddict-item]
            },
        ),
        (
            "cron",
            late.InvalidCron,
            {
                "below 1 s": lambda tx: app.schedule("* * * * * *"),
                "30 February": lambda tx: app.schedule("0 0 30 2 *"),
                "10 kB": lambda tx: app.schedule("0 " * 5000),
                "*/0": lambda tx: app.schedule("*/0 * * * *"),
                "zone": lambda tx: app.schedule("0 3 * * *", tz="Mars/Olympus"),
                "empty": lambda tx: app.schedule(""),
                "words": lambda tx: app.schedule("every day"),
                "type": lambda tx: app.schedule(3),  # type: ignore[arg-type]
                "every 0": lambda tx: app.schedule(every=0),
                "every nan": lambda tx: app.schedule(every=math.nan),
                "every 0.5": lambda tx: app.schedule(every=timedelta(milliseconds=500)),
                "every > 366 d": lambda tx: app.schedule(every=timedelta(days=367)),
            },
        ),
        (
            "names outside the pattern",
            late.InvalidName,
            {
                "task": lambda tx: loose.send(tx, "no spaces", {}),
                "task empty": lambda tx: loose.send(tx, "", {}),
                "task 129": lambda tx: loose.send(tx, "x" * 129, {}),
                "task newline": lambda tx: loose.send(tx, "x\n", {}),
                "task type": lambda tx: loose.send(tx, 3, {}),  # type: ignore[call-overload]
                "queue": lambda tx: loose.send(tx, "x", {}, queue="a/b"),
                "queue empty": lambda tx: loose.send(tx, "x", {}, queue=""),
                "queue reserved": lambda tx: loose.send(tx, "x", {}, queue="late.control"),
                "queue nul": lambda tx: loose.send(tx, "x", {}, queue="a\0"),
                "ordering key": lambda tx: anything.options(ordering_key="ü"),
                "limit key": lambda tx: anything.options(limit_key="a b"),
                "limit key header": lambda tx: anything.options(headers={"limit_key": ""}),
                "unique key": lambda tx: anything.options(unique_key="a b"),
                "unique key type": lambda tx: anything.options(unique_key=b"k"),  # type: ignore[typeddict-item]
            },
        ),
        (
            "batch > 1,000 or > 8 MiB",
            late.BatchTooLarge,
            {
                "tasks": lambda tx: app.enqueue_many(tx, [anything.call(1)] * 1001),
                "endless": lambda tx: app.enqueue_many(tx, iter(lambda: anything.call(1), None)),
                "bytes": lambda tx: app.enqueue_many(tx, [anything.call("x" * 1_000_000)] * 9),
            },
        ),
        (
            "not a call",
            late.InvalidTask,
            {
                "task": lambda tx: app.enqueue_many(tx, [anything]),  # type: ignore[list-item]
                "another app's": lambda tx: loose.enqueue_many(tx, [anything.call(1)]),
                "queue of a known task": lambda tx: app.send(
                    tx, "anything", {"value": 1}, queue="other"
                ),
            },
        ),
    ]
    for what, case in cases.items()
]


@pytest.mark.parametrize(
    ("error", "case"),
    [pytest.param(error, case, id=f"{row}: {what}") for row, what, error, case in CASES],
)
def test_row(tx: sqlite3.Connection, error: type[Exception], case: Case) -> None:
    with pytest.raises(error) as caught:
        case(tx)
    assert 0 < len(str(caught.value)) < 400, "a message is short, however large the input"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "asked",
    [
        {"at": datetime(1970, 1, 1, tzinfo=UTC)},
        {"at": datetime.min.replace(tzinfo=UTC)},
        {"at": now - timedelta(seconds=1)},
        {"delay": -1},
        {"delay": timedelta(days=-400)},
        {"delay": -(10**400)},
    ],
)
def test_row_eta_in_the_past_runs_now(asked: Any) -> None:
    options = anything.options(**asked).call(1).settings.options
    assert options.delay_us == 0
    assert options.at_us is None or options.at_us <= now.timestamp() * 1e6


def test_row_unknown_handler_is_allowed_if_not_strict() -> None:
    row = loose.row(loose.call("nobody", {"a": 1}, queue="q"))
    assert (row.name, row.queue, row.payload) == ("nobody", "q", b'{"a":1}')


def test_row_backlog_over_quota(tx: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    full = late.App("sqlite:///unused.db", max_backlog={"busy": 100}, strict=False)
    call = full.call("x", {}, queue="busy")
    clock = 1000.0
    monkeypatch.setattr("late.app.backpressure.time.monotonic", lambda: clock)
    full.observe_backlog("busy", 100)
    for attempt in (lambda: full.enqueue(tx, call), lambda: full.enqueue_many(tx, [call])):
        with pytest.raises(late.QueueFull, match="'busy' holds 100 tasks, its bound is 100"):
            attempt()
    full.prepare([full.call("x", {}, queue="other")])
    clock += 5.1
    full.prepare([call])  # stale: says nothing
    full.observe_backlog("busy", 99)
    full.prepare([call])


def record(payload: bytes, *, name: str = "anything", queue: str = "default") -> Record:
    task_id = late.TaskId("01920000-0000-7001-8000-000000000001")
    return Record(1, 1, task_id, queue, name, payload, None, None, 1, 1)


SIGNED = Signed("json", keys={"k1": b"0123456789abcdef"}, current="k1")
secure = late.App("sqlite:///unused.db", codec=SIGNED)


@secure.task
def signed(value: Any) -> None: ...


@pytest.mark.parametrize(
    ("reason", "task", "payload", "options"),
    [
        ("payload_too_large", anything, b'{"value":"' + b"x" * 1_048_576 + b'"}', None),
        ("undecodable", anything, b"", None),
        ("undecodable", anything, b"\xff\xfe", None),
        ("undecodable", anything, b"[1]", None),
        ("undecodable", anything, b'{"value":NaN}', None),
        ("undecodable", anything, b'{"value":1e999}', None),
        ("undecodable", anything, b'{"value":"\\u0000"}', None),
        ("undecodable", anything, b'{"value":"\\ud800"}', None),
        ("undecodable", anything, b'{"value":"\xed\xa0\x80"}', None),
        ("undecodable", anything, b'{"value":18446744073709551616}', None),
        ("undecodable", anything, b'{"value":' + b"[" * 65 + b"]" * 65 + b"}", None),
        ("undecodable", anything, b"[" * 1_000_000, None),
        ("undecodable", anything, b'{"nope":1}', None),
        ("undecodable", anything, b'{"value":1,"nope":1}', None),
        ("undecodable", typed, b'{"number":"1","ratio":1.0,"when":"x"}', None),
        ("undecodable", anything, b"\x81", Options(codec="msgpack")),
        ("undecodable", anything, b'{"value":1}', Options(codec="zip")),
        ("bad_signature", signed, b'{"value":1}', None),
        ("bad_signature", signed, b'{"value":1}', Options(codec="signed+json")),
        ("bad_signature", signed, b"LS1", Options(codec="signed+json")),
        ("bad_signature", signed, b"LS1\xffk1", Options(codec="signed+json")),
    ],
)
def test_worker_row(
    reason: str, task: late.Task[Any, Any], payload: bytes, options: Options | None
) -> None:
    with pytest.raises(DecodeError) as caught:
        task.decode(record(payload, name=task.name), options)
    assert caught.value.reason == reason


@pytest.mark.parametrize("queue", ["", "a b", "x" * 129, "a\n"])
def test_worker_row_names_outside_the_pattern(queue: str) -> None:
    with pytest.raises(DecodeError) as caught:
        anything.decode(record(b'{"value":1}', queue=queue), None)
    assert caught.value.reason == "invalid_name"


hostile = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters()),
        st.binary(),
        st.complex_numbers(),
        st.decimals(),
        st.datetimes(timezones=st.one_of(st.none(), st.timezones())),
        st.timedeltas(),
        st.builds(object),
        st.just(type),
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.none()), inner),
        st.tuples(inner, inner),
        st.frozensets(st.integers()),
    ),
    max_leaves=10,
)


@settings(deadline=None)  # machines under load are not what is tested
@given(value=hostile, name=hostile, key=hostile)
def test_hostile_input_raises_nothing_but_invalid_task(value: Any, name: Any, key: Any) -> None:
    messages: list[str] = []

    def attempt(case: Callable[[], Any]) -> None:
        try:
            case()
        except InvalidTask as error:
            messages.append(str(error))

    attempt(lambda: app.row(anything.call(value)))
    attempt(lambda: app.row(packed.call(value)))
    attempt(lambda: loose.row(loose.call(name, value)))
    attempt(lambda: loose.row(loose.call("x", {"a": value}, queue=key)))
    for option in late.TaskOptions.__annotations__:
        attempt(lambda option=option: anything.options(**{option: value}))
        attempt(lambda option=option: anything.options(**{option: key}))
    attempt(lambda: late.Retry(value, key))
    attempt(lambda: late.Snooze(value))
    assert all(len(message) < 400 for message in messages)


@settings(deadline=None)  # machines under load are not what is tested
@given(payload=st.binary(), text=hostile)
def test_hostile_rows_raise_nothing_but_decode_errors(payload: bytes, text: Any) -> None:
    rows = [payload]
    reasons: set[str] = set()
    try:
        rows.append(msgspec.json.encode(text))
        rows.append(msgspec.msgpack.encode(text))
    except Exception:
        pass
    for row in rows:
        for codec in (None, "msgpack", "signed+json"):
            for task in (anything, typed, packed, signed):
                try:
                    task.decode(record(row, name=task.name), Options(codec=codec))
                except DecodeError as error:
                    reasons.add(error.reason)
    assert reasons <= {"undecodable", "bad_signature"}


@app.task
def partly(number: int, note: str = "none", flag: bool = False) -> None: ...


ROWS = [
    b'{"number":1}',
    b'{"number":1,"note":"n","more":[1,2]}',
    b'{"number":' + b"7" * 19 + b"}",
    b'{"number":' + b"7" * 30 + b"}",
    b'{"number":"1"}',
    b'{"number":1,"note":"\\u0000"}',
    b'{"number":1,"more":' + b"[" * 65 + b"]" * 65 + b"}",
    b'{"number":1,"note":"' + b"x" * 1_048_576 + b'"}',
    b'{"value":{"a":[1]}}',
    b"[]",
    b"",
]


@pytest.mark.parametrize("task", [anything, typed, partly, packed, signed])
@pytest.mark.parametrize("queue", ["default", "a b"])
def test_the_short_way_of_a_plain_row_says_what_the_long_way_says(task: Any, queue: str) -> None:
    long = copy(task)
    long._plain = None
    for row in ROWS:
        assert decoded(task, row, queue) == decoded(long, row, queue), row[:80]


def decoded(task: Any, row: bytes, queue: str) -> object:
    try:
        return task.decode(record(row, name=task.name, queue=queue), None)
    except DecodeError as error:
        return error.reason, error.elsewhere, str(error)


def test_a_plain_row_takes_the_short_way() -> None:
    assert partly._plain is not None
    assert packed._plain is None
    assert signed._plain is None
    short = copy(partly)
    short.arguments = None  # type: ignore[method-assign, assignment]
    assert short.decode(record(b'{"number":1,"flag":true}'), None) == {"number": 1, "flag": True}
