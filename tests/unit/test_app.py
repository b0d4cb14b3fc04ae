"""Registering tasks and turning calls into rows. No database."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

import late
from late.errors import ConfigError, InvalidCron
from late.model.ids import shard_of
from late.model.lanes import Lane
from late.model.task import Options, Policy, Record
from late.payload import codec
from late.payload import values as payload

app = late.App("sqlite:///unused.db", shards=4)


@dataclasses.dataclass
class Place:
    lat: float
    lon: float


class Stop(msgspec.Struct):
    at: Place
    tags: frozenset[str] = frozenset()


class Fare(TypedDict, total=False):
    cents: int


class Colour(Enum):
    RED = "red"


@app.task(queue="payments", retry=late.Retry(max_attempts=5), timeout_s=30, priority=3)
async def charge(
    ctx: late.AsyncContext, trip_id: int, amount: Decimal = Decimal(1), *, note: str = ""
) -> Place: ...


@app.task
def rich(
    place: Place,
    stops: list[Stop],
    fare: Fare,
    colour: Colour,
    when: datetime,
    mode: Literal["a", "b"] = "a",
    limited: Annotated[int, msgspec.Meta(ge=0)] = 0,
    maybe: Place | None = None,
    raw: bytes = b"",
) -> None: ...


def decoded(task: late.Task[Any, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """What the handler of a call would get."""
    call = task.call(*args, **kwargs)
    row = task.app.row(call)
    record = Record(
        row.shard_id, 1, row.task_id, row.queue, row.name, row.payload, None, row.options, 1, 1
    )
    return task.decode(record, call.settings.options)


def test_a_task_says_how_it_is_run() -> None:
    assert app.tasks["charge"] is charge
    assert (charge.name, charge.queue, charge.timeout_s) == ("charge", "payments", 30)
    assert (charge.is_async, charge.wants_context, charge.process) == (True, True, False)
    assert charge.policy == Policy(queue="payments", max_attempts=5)
    assert charge.retry.max_attempts == 5
    assert (rich.is_async, rich.wants_context, rich.timeout_s) == (False, False, 300)
    assert rich.policy == Policy()
    with pytest.raises(TypeError):
        app.tasks["x"] = charge  # type: ignore[index]


def test_what_is_not_given_is_not_sent() -> None:
    assert charge.call(7).payload == b'{"trip_id":7}'
    assert decoded(charge, 7) == {"trip_id": 7}
    assert decoded(charge, 7, Decimal("3.50"), note="x") == {
        "trip_id": 7,
        "amount": Decimal("3.50"),
        "note": "x",
    }
    # A default that is given is sent: it may change in a later version of the code.
    assert charge.call(7, Decimal(1)).payload == b'{"trip_id":7,"amount":"1"}'


def test_rich_types_arrive_as_what_they_were() -> None:
    given: dict[str, Any] = {
        "place": Place(1.5, 2.5),
        "stops": [Stop(Place(0.0, 0.0), frozenset({"x"}))],
        "fare": Fare(cents=3),
        "colour": Colour.RED,
        "when": datetime(2026, 1, 2, 3, 4, 5, 678, UTC),
        "maybe": Place(0.0, 1.0),
        "raw": b"\x00\xff",
    }
    assert decoded(rich, **given) == given
    with pytest.raises(late.InvalidPayload):
        rich.call(**given, limited=-1)
    with pytest.raises(late.InvalidPayload):
        rich.call(**given, mode="c")


def test_calling_a_task_calls_the_function() -> None:
    @late.App("sqlite:///x.db").task
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8
    assert double.fn(4) == 8


def test_options_are_laid_over_the_task_s_own() -> None:
    assert charge.call(1).settings.options == Options(priority=3)
    at = datetime(2020, 1, 1, tzinfo=UTC)
    asked = charge.options(
        at=at, expires=timedelta(seconds=1.5), unique_key="u", headers={"a": "b"}
    )
    settings = asked.call(1).settings
    assert settings.options == Options(
        at_us=1_577_836_800_000_000, expires_in_us=1_500_000, unique_key="u", priority=3
    )
    assert settings.headers_json == '{"a":"b"}'
    assert rich.options().call  # no options are fine
    assert rich.options(delay=0, headers={}, priority=0)._settings.options_json is None
    expiry = datetime.now(UTC) + timedelta(hours=1)
    assert rich.options(expires=expiry)._settings.options.expires_at_us == round(
        expiry.timestamp() * 1e6
    )
    with pytest.raises(TypeError, match="unknown task option dealy"):
        rich.options(dealy=1)  # type: ignore[call-arg]


def test_a_delay_is_exact_to_the_microsecond() -> None:
    for delay, us in ((0.000001, 1), (0.1, 100_000), (timedelta(days=366), 31_622_400_000_000)):
        assert rich.options(delay=delay)._settings.options.delay_us == us


@pytest.mark.parametrize("batch", [False, True])
def test_rows_are_spread_over_the_shards_evenly(batch: bool) -> None:
    calls = [charge.call(n) for n in range(400)]
    rows = app.prepare(calls) if batch else [app.row(call) for call in calls]
    assert [row.payload for row in rows] == [call.payload for call in calls]
    assert Counter(row.shard_id for row in rows) == {0: 100, 1: 100, 2: 100, 3: 100}
    assert all(shard_of(row.task_id) == row.shard_id for row in rows)


def test_a_batch_goes_to_one_shard_after_the_other() -> None:
    shards = [row.shard_id for row in app.prepare([charge.call(n) for n in range(10)])]
    assert [shard for shard, _ in groupby(shards)] == [0, 1, 2, 3]


def test_batches_and_single_tasks_take_turns_as_if_all_were_single() -> None:
    keyed = charge.options(ordering_key="k")
    found: Counter[int] = Counter()
    for n in range(app.shards * 10):
        rows = app.prepare([charge.call(n), keyed.call(n), charge.call(n)])
        found.update(row.shard_id for row in (rows[0], rows[2], app.row(charge.call(n))))
    assert found == dict.fromkeys(range(app.shards), 30)


def test_rows_of_a_batch_are_as_if_made_one_by_one() -> None:
    signed = late.App("sqlite:///x.db", codec=codec.Signed(keys={"k": b"x" * 16}, current="k"))
    asked: list[Any] = [{}, {"headers": {"a": "b"}}, {"ordering_key": "o", "headers": {"c": "d"}}]
    asked += [
        {"unique_key": "u", "unique_for": 9},
        {"limit_key": "s"},
        {"delay": 3, "on_conflict": None},
        {},
    ]

    def ping(value: int) -> None: ...

    for own in (late.App("sqlite:///x.db"), signed):
        task = own.task(ping)
        calls = [task.options(**options).call(n) for n, options in enumerate(asked)]
        own.adopt(Lane(shards=own.shards, version=3))
        batch = own.prepare([*calls, calls[0]])
        for call, row in zip([*calls, calls[0]], batch, strict=True):
            alone = own.row(call)
            placed = {"task_id": row.task_id, "payload": row.payload}
            if row.fence is None:
                placed["shard_id"] = row.shard_id
            assert msgspec.structs.replace(alone, **placed) == row
            subject = codec.Subject(row.task_id, row.name, row.queue)
            assert call.codec.open(row.payload, subject) == call.payload


def test_an_ordering_key_has_one_shard_in_every_process() -> None:
    keyed = charge.options(ordering_key="trip-7")
    assert {app.row(keyed.call(n)).shard_id for n in range(20)} == {app.shard_of("trip-7")}
    # The hash is part of the stored format: another one would break the order of a key.
    assert late.App("sqlite:///x.db", shards=4096).shard_of("trip-7") == 3919


def test_a_limit_key_has_one_shard_and_is_a_header() -> None:
    by_option = charge.options(limit_key="shop-7", headers={"a": "b"})
    by_header = charge.options(headers={"limit_key": "shop-7"})
    both = charge.options(limit_key="shop-7", ordering_key="shop-7")
    rows = [app.row(each.call(n)) for each in (by_option, by_header, both) for n in range(9)]
    rows += app.prepare([by_header.call(n) for n in range(9)])
    assert {row.shard_id for row in rows} == {app.shard_of("shop-7")}
    assert rows[0].headers == '{"a":"b","limit_key":"shop-7"}'
    assert rows[0].fence is None, "no statement depends on the lane for a limit"
    with pytest.raises(late.InvalidPolicy, match=r"charge.*must be the same"):
        charge.options(limit_key="shop-7", ordering_key="order-1")


def test_a_call_enqueued_twice_is_two_tasks() -> None:
    call = charge.call(1)
    assert app.row(call).task_id != app.row(call).task_id


def test_a_large_payload_is_logged_once_per_task(caplog: pytest.LogCaptureFixture) -> None:
    other = late.App("sqlite:///x.db")

    @other.task
    def echo(value: str) -> None: ...

    with caplog.at_level(logging.WARNING, "late"):
        for _ in range(3):
            other.row(echo.call("x" * payload.PAYLOAD_BYTES_WARN))
    (logged,) = caplog.records
    assert "task echo" in logged.getMessage()
    assert "xxx" not in logged.getMessage()


def test_by_name_is_the_same_as_by_function() -> None:
    call = app.call("charge", {"trip_id": 7, "note": "n"}, delay=3)
    assert call.payload == charge.call(7, note="n").payload
    assert call.queue == "payments"
    assert call.settings.options == Options(delay_us=3_000_000, priority=3)


def positional(a: int, /) -> None: ...
def variable(*args: int) -> None: ...
def keywords(**kwargs: int) -> None: ...
def context_second(a: int, ctx: late.Context) -> None: ...
def wrong_context(ctx: late.AsyncContext) -> None: ...
async def wrong_async_context(ctx: late.Context) -> None: ...
def unresolved(a: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821
def custom(a: Path | None, b: logging.Logger) -> None: ...
def ambiguous(a: Place | Stop) -> None: ...
def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def of_a_batch(batch: late.Batch[int]) -> None: ...


class Callable_:
    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (positional, "'a' is positional-only"),
        (variable, r"\*args: 'int'|\*args: int"),
        (keywords, "kwargs"),
        (context_second, "'ctx' must be the first"),
        (wrong_context, "a plain def takes late.Context, not AsyncContext"),
        (wrong_async_context, "an async def takes late.AsyncContext, not Context"),
        (unresolved, "Nowhere"),
        (custom, "parameter '\\w+' of type (Path|Logger|PosixPath) cannot be decoded"),
        (ambiguous, "the type of parameter '\\w+' cannot be decoded"),
        (of_a_batch, "is declared with batch=N"),
        (generator, "generator"),
        (async_generator, "generator"),
        (Callable_(), "a task is a function|task name"),
        (lambda: None, "task name"),
    ],
)
def test_a_signature_that_cannot_be_a_payload_is_refused(function: Any, says: str) -> None:
    fresh = late.App("sqlite:///x.db")
    with pytest.raises(late.ConfigError, match=says):
        fresh.task(function)
    assert not fresh.tasks


@pytest.mark.parametrize(
    "settings",
    [
        {"queue": "no spaces"},
        {"queue": ""},
        {"name": "x" * 129},
        {"retry": 3},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"timeout_s": 8 * 86_400},
        {"priority": 101},
        {"codec": "pickle"},
        {"process": True},  # the function is a local one
    ],
)
def test_a_wrong_setting_is_refused(settings: Any) -> None:
    fresh = late.App("sqlite:///x.db")

    def handler() -> None: ...

    with pytest.raises(late.ConfigError):
        fresh.task(**settings)(handler)
    assert not fresh.tasks


def test_a_name_is_taken_once() -> None:
    with pytest.raises(late.ConfigError, match=r"'charge' is registered twice.*test_app"):
        app.task(name="charge")(generator)


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("trips.db", {}),
        ("mysql://root:secret@host/db", {}),
        ("sqlite:///x.db", {"shards": 0}),
        ("sqlite:///x.db", {"shards": 4097}),
        ("sqlite:///x.db", {"group": "a b"}),
    ],
)
def test_a_wrong_app_is_refused(url: str, settings: Any) -> None:
    with pytest.raises(late.ConfigError) as caught:
        late.App(url, **settings)
    assert "secret" not in str(caught.value)


def test_an_app_opens_nothing(tmp_path: Path) -> None:
    late.App(f"sqlite:///{tmp_path}/x.db")
    late.App("postgresql+psycopg://nobody:secret@127.0.0.1:1/none")
    assert list(tmp_path.iterdir()) == []
    assert "secret" not in repr(late.App("postgresql://nobody:secret@127.0.0.1:1/none"))


def test_schedules() -> None:
    fresh = late.App("sqlite:///x.db", shards=4)

    @fresh.schedule("0 3 * * *", tz="America/New_York", catch_up="all", catch_up_max=3)
    @fresh.schedule(every=timedelta(seconds=90), name="often", overlap="queue", args={"deep": True})
    @fresh.task(queue="reports", priority=-1)
    async def report(ctx: late.AsyncContext, deep: bool = False) -> None: ...

    @fresh.schedule(every=1.5)
    def tick() -> None: ...

    often, nightly, ticking = fresh.schedules
    assert (nightly.name, nightly.rule, nightly.zone) == ("report", "0 3 * * *", "America/New_York")
    assert (nightly.catch_up, nightly.catch_up_max, nightly.overlap) == ("all", 3, "skip")
    assert (nightly.queue, nightly.task_name, nightly.payload) == ("reports", "report", b"{}")
    assert nightly.options == '{"priority":-1}'
    assert nightly.shard_id == fresh.shard_of("report")
    assert (often.rule, often.overlap, often.payload) == ("every 90s", "queue", b'{"deep":true}')
    assert (ticking.name, ticking.rule, ticking.catch_up) == ("tick", "every 1.5s", "latest")
    assert isinstance(fresh.tasks["tick"], late.Task)


@pytest.mark.parametrize(
    ("error", "settings"),
    [
        (late.ConfigError, {}),
        (late.ConfigError, {"rule": "* * * * *", "every": 3}),
        (late.ConfigError, {"every": 3, "catch_up": "some"}),
        (late.ConfigError, {"every": 3, "catch_up_max": 0}),
        (late.ConfigError, {"every": 3, "overlap": "some"}),
        (late.ConfigError, {"every": 3, "name": "a b"}),
        (late.ConfigError, {"every": 3, "name": "taken", "args": {"deep": True}}),
        (late.InvalidPayload, {"every": 3}),
        (late.InvalidPayload, {"every": 3, "args": {"deep": "yes"}}),
    ],
)
def test_a_wrong_schedule_is_refused(error: type[Exception], settings: Any) -> None:
    fresh = late.App("sqlite:///x.db")

    @fresh.schedule(every=1, name="taken", args={"deep": True})
    @fresh.task
    def report(deep: bool) -> None: ...

    def attempt() -> None:
        fresh.schedule(**settings)(report)

    with pytest.raises(error):
        attempt()
    assert len(fresh.schedules) == 1


def test_import_is_quick_and_complete() -> None:
    code = """
        import sys
        import late
        early = [m for m in ("msgspec", "sqlalchemy", "psycopg", "asyncio") if m in sys.modules]
        assert not early, early
        assert set(late.__all__) <= set(dir(late))
        for name in late.__all__:
            getattr(late, name)
        heavy = [m for m in ("sqlalchemy", "alembic", "psycopg", "cronsim") if m in sys.modules]
        assert not heavy, heavy
        import late.testing.pytest_plugin
        import late.testing
        assert "late.testing.inline_mode" not in sys.modules
        for name in late.testing.__all__:
            getattr(late.testing, name)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
    with pytest.raises(AttributeError):
        late.nothing  # type: ignore[attr-defined] # noqa: B018


def test_documented_modules_are_public_names() -> None:
    """They were modules of the package before it had rooms."""
    assert late.codec.Encrypted is late.Encrypted
    assert late.codec.Signed is late.Signed
    assert callable(late.tracing.enable)
    assert issubclass(late.log.Ids, logging.Filter)


def test_a_setting_that_does_not_exist_is_refused_at_once_and_by_its_name() -> None:
    app = late.App("sqlite:///late.db")
    with pytest.raises(TypeError, match=r"@app.task has no setting 'retries'; it has .*retry"):
        app.task(retries=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"app.remote has no setting 'process'; it has"):
        app.remote("pay", target="billing", process=True)  # type: ignore[call-overload]
    assert not app.tasks


def test_a_schedule_takes_a_jitter_of_half_of_the_time_between_two_ticks() -> None:
    app = late.App("sqlite://")

    @app.schedule("0 * * * *", jitter="30m")
    @app.schedule("0 0 1 * *", jitter=3_600, name="monthly")
    @app.schedule(every=60, jitter=timedelta(seconds=30), name="often")
    @app.task
    def tidy() -> None: ...

    moved = {each.name: each.jitter_us for each in app.schedules}
    assert moved == {"tidy": 1_800_000_000, "monthly": 3_600_000_000, "often": 30_000_000}
    for bad in (1_801, "31m", -1, True, float("nan")):
        with pytest.raises(InvalidCron, match="jitter"):
            app.schedule("0 * * * *", jitter=bad)
    with pytest.raises(ConfigError, match="jitter"):
        app.schedule("0 * * * *", jitter="soon")
