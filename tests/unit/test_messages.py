"""What a user wrote, and the message: it names the task and the parameter, and says what to do."""

from __future__ import annotations

import gc
import sqlite3
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import late
from late.errors import DecodeError
from late.outbox.execute import run, run_async

app = late.App("sqlite:///unused.db")
other = late.App("postgresql://shop:hidden@db/stock", group="stock")  # pragma: allowlist secret
tx = sqlite3.connect(":memory:", isolation_level=None)
"""It has no transaction open, and no tables: nothing may get so far as to notice."""
ACCEPTED = "pass a SQLAlchemy Session"
BOTH = ("group=default> on sqlite:///unused.db", "group=stock> on postgresql://shop:***@db/stock")
"""How a message names the app of a call, and the one that got it."""


class Base(DeclarativeBase):
    """The tables of a service."""


class Order(Base):
    """A row, which is no payload."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@app.task
def pay(order_id: int, note: str = "") -> None: ...


@app.task
def ship(order: Any) -> None: ...


@app.task
def report() -> None: ...


def django_row() -> Any:
    """Return an object with what Django's models have."""
    return type("Order", (), {"_meta": None, "pk": 7})()


def takes_row(order: Order) -> None: ...


def takes_object(order: set[frozenset[range]]) -> None: ...


def misplaced(order_id: int, ctx: late.Context) -> None: ...


NOW = datetime.now(UTC)
Wrote = Callable[[], object]
TABLE: dict[str, tuple[Wrote, type[Exception], tuple[str, ...]]] = {
    # --- the transaction
    "pay.enqueue(7)": (
        lambda: pay.enqueue(7),
        late.errors.InvalidTask,
        ("pay: the first argument of enqueue is the transaction", "builtins.int", ACCEPTED),
    ),
    "pay.enqueue(order_id=7)": (
        lambda: pay.enqueue(order_id=7),
        late.errors.InvalidTask,
        ("pay: no transaction given: enqueue(tx, ...)", ACCEPTED),
    ),
    "app.enqueue_many([pay.call(7)])": (
        lambda: app.enqueue_many([pay.call(7), report.call()]),
        late.errors.InvalidTask,
        ("pay, report: no transaction given: app.enqueue_many(tx, [", ACCEPTED),
    ),
    "app.enqueue_many(calls, tx)": (
        lambda: app.enqueue_many([pay.call(7)], tx),
        late.errors.InvalidTask,
        ("app.enqueue_many takes a list", "is a transaction, which is the first argument"),
    ),
    "app.enqueue_many(tx, pay.call(7))": (
        lambda: app.enqueue_many(tx, pay.call(7)),
        late.errors.InvalidTask,
        ("pay: app.enqueue_many takes a list of calls",),
    ),
    "app.enqueue_many(tx, [pay])": (
        lambda: app.enqueue_many(tx, [pay]),
        late.errors.InvalidTask,
        ("'pay' is a task: write pay.call(...)",),
    ),
    "other.enqueue_many(tx, [pay.call(7)])": (
        lambda: other.enqueue_many(tx, [pay.call(7)]),
        late.errors.InvalidTask,
        ("'pay' is a task of another app", *BOTH),
    ),
    "other.enqueue(tx, pay.call(7))": (
        lambda: other.enqueue(tx, pay.call(7)),
        late.errors.InvalidTask,
        ("'pay' is a task of another app", *BOTH),
    ),
    "app.enqueue(pay.call(7))": (
        lambda: app.enqueue(pay.call(7)),
        late.errors.InvalidTask,
        ("pay: app.enqueue takes a transaction and a call", ACCEPTED),
    ),
    "app.enqueue(tx, pay)": (
        lambda: app.enqueue(tx, pay),
        late.errors.InvalidTask,
        ("'pay' is a task: write pay.call(...)",),
    ),
    "app.send('pay', {...})": (
        lambda: app.send("pay", {"order_id": 7}),
        late.errors.InvalidTask,
        ("'pay': the first argument of app.send is the transaction", ACCEPTED),
    ),
    "app.send(tx)": (
        lambda: app.send(tx),
        late.InvalidName,
        ("no name of a task given: app.send(tx,",),
    ),
    "pay.enqueue(tx, 7) outside of a transaction": (
        lambda: pay.enqueue(tx, 7),
        late.errors.InvalidTask,
        ("pay: ", "autocommit"),
    ),
    "an async session in code that does not await": (
        lambda: run(AsyncSession(create_async_engine("sqlite+aiosqlite://")), None),
        late.errors.InvalidTask,
        ("AsyncSession", "await"),
    ),
    # --- arguments
    "pay.enqueue(tx, {'order_id': 7})": (
        lambda: pay.enqueue(tx, {"order_id": 7}),
        late.InvalidPayload,
        ("pay, parameter 'order_id': Expected `int`", "as in a call: enqueue(tx, **arguments)"),
    ),
    "pay.enqueue(tx, '7')": (
        lambda: pay.enqueue(tx, "7"),
        late.InvalidPayload,
        ("pay, parameter 'order_id': Expected `int`, got `str`",),
    ),
    "pay.enqueue(tx, 7, delay=5)": (
        lambda: pay.enqueue(tx, 7, delay=5),
        late.InvalidPayload,
        ("pay: ", "'delay'", ".options(delay=...).enqueue(tx, ...)"),
    ),
    "pay.enqueue(tx)": (
        lambda: pay.enqueue(tx),
        late.InvalidPayload,
        ("pay: Missing required argument 'order_id'",),
    ),
    "pay.enqueue(tx, pay.call(7))": (
        lambda: pay.enqueue(tx, pay.call(7)),
        late.InvalidPayload,
        ("pay, parameter 'order_id'", "a call is enqueued by app.enqueue(tx, call)"),
    ),
    "ship.enqueue(tx, a row of SQLAlchemy)": (
        lambda: ship.enqueue(tx, [Order(id=7)]),
        late.InvalidPayload,
        ("ship, parameter 'order'", "Order is a row of a table: pass its id"),
    ),
    "ship.enqueue(tx, a row of Django)": (
        lambda: ship.enqueue(tx, {"order": django_row()}),
        late.InvalidPayload,
        ("ship, parameter 'order'", "Order is a row of a table: pass its id"),
    ),
    "ship.enqueue(tx, an object)": (
        lambda: ship.enqueue(tx, object()),
        late.InvalidPayload,
        ("ship, parameter 'order'", "objects of type object have no form in JSON"),
    ),
    "app.send(tx, 'pay', 7)": (
        lambda: app.send(tx, "pay", 7),
        late.InvalidPayload,
        ("pay: arguments must be a mapping by name, got 7",),
    ),
    "app.send(tx, 'pay', order_id=7)": (
        lambda: app.send(tx, "pay", order_id=7),
        TypeError,
        ("pay: unknown task option order_id", "arguments are one mapping by name"),
    ),
    "app.send(tx, 'pya')": (
        lambda: app.send(tx, "pya", {"order_id": 7}),
        late.UnknownTask,
        ("'pya'", "did you mean 'pay'?"),
    ),
    "app.send(tx, pay)": (
        lambda: app.send(tx, pay, {"order_id": 7}),
        late.InvalidName,
        ("pay: the name of the task is text: 'pay'",),
    ),
    "app.handle(7)": (lambda: app.handle(7), late.InvalidName, ("not a task id: 7",)),
    # --- options
    "pay.options(delay='2 years')": (
        lambda: pay.options(delay="2 years"),
        late.InvalidSchedule,
        ("pay: delay must be 0..31622400 seconds (below 0 is now), got '2 years'",),
    ),
    "pay.options(delay=a datetime)": (
        lambda: pay.options(delay=NOW),
        late.InvalidSchedule,
        ("pay: delay is a number of seconds or a timedelta", "at="),
    ),
    "pay.options(at=5)": (
        lambda: pay.options(at=5),
        late.InvalidSchedule,
        ("pay: at is a datetime, got 5", "delay="),
    ),
    "pay.options(at=a timedelta)": (
        lambda: pay.options(at=timedelta(hours=1)),
        late.InvalidSchedule,
        ("pay: at is a datetime", "delay="),
    ),
    "pay.options(at=a naive time)": (
        lambda: pay.options(at=NOW.replace(tzinfo=None)),
        late.InvalidSchedule,
        ("pay: at must carry a time zone",),
    ),
    "pay.options(countdown=5)": (
        lambda: pay.options(countdown=5),
        TypeError,
        ("pay: unknown task option countdown: countdown is delay here",),
    ),
    "pay.options(queue='mail')": (
        lambda: pay.options(queue="mail"),
        TypeError,
        ("pay: ", "queue is a setting of the task: @app.task(queue=...)"),
    ),
    "pay.options(dealy=5)": (
        lambda: pay.options(dealy=5),
        TypeError,
        ("pay: unknown task option dealy: did you mean delay?",),
    ),
    "pay.options(unique_key='a b')": (
        lambda: pay.options(unique_key="a b"),
        late.InvalidName,
        ("pay: unique_key must match", "'a b'"),
    ),
    "app.send(tx, 'pay', {...}, priority='high')": (
        lambda: app.send(tx, "pay", {"order_id": 7}, priority="high"),
        late.InvalidPolicy,
        ("pay: priority must be -100..100, got 'high'",),
    ),
    # --- declarations
    "def handler(order: a row)": (
        lambda: app.task(takes_row),
        late.ConfigError,
        ("takes_row: parameter 'order' of type Order", "take its id"),
    ),
    "def handler(order: a class)": (
        lambda: app.task(takes_object),
        late.ConfigError,
        ("takes_object: parameter 'order' of type range cannot be decoded", "use built-in types"),
    ),
    "def handler(order_id, ctx)": (
        lambda: app.task(misplaced),
        late.ConfigError,
        ("misplaced: the context 'ctx' must be the first parameter",),
    ),
    "@app.task('pay')": (
        lambda: app.task("pay"),
        late.ConfigError,
        ("@app.task takes a function, or settings by name; got 'pay'",),
    ),
    "@app.task(retry=3)": (
        lambda: app.task(retry=3)(takes_row),
        late.ConfigError,
        ("takes_row",),
    ),
    "@app.schedule('@daily')": (
        lambda: app.schedule("@daily"),
        late.InvalidCron,
        ("'@daily' cannot be read: write '0 0 * * *'",),
    ),
    "@app.schedule('every 5 minutes')": (
        lambda: app.schedule("every 5 minutes"),
        late.InvalidCron,
        ("'every 5 minutes'", "every=SECONDS"),
    ),
    "@app.schedule('61 * * * *')": (
        lambda: app.schedule("61 * * * *"),
        late.InvalidCron,
        ("'61 * * * *' cannot be read: Bad minute",),
    ),
    "@app.schedule(a timedelta)": (
        lambda: app.schedule(timedelta(hours=1)),
        late.InvalidCron,
        ("give an interval as every=",),
    ),
    "@app.schedule": (
        lambda: app.schedule(report),
        late.InvalidCron,
        ("report", '@app.schedule("0 0 * * *")'),
    ),
    "@app.schedule(..., timezone='UTC')": (
        lambda: app.schedule("0 0 * * *", timezone="UTC"),
        TypeError,
        ("app.schedule has no setting 'timezone'", "tz"),
    ),
    "@app.schedule(..., args=[7])": (
        lambda: app.schedule("0 0 * * *", args=[7]),
        late.ConfigError,
        ("args of a schedule is a mapping by name, got [7]",),
    ),
    "@app.schedule on a task with arguments": (
        lambda: app.schedule("0 0 * * *")(pay),
        late.InvalidPayload,
        ("pay: Missing required argument 'order_id'",),
    ),
    # --- in a worker
    "a stored argument of another type": (
        lambda: pay.arguments(b'{"order_id": "x"}', "json"),
        DecodeError,
        ("pay, parameter 'order_id': payload does not fit the task: Expected `int`, got `str`",),
    ),
    "a stored task without an argument": (
        lambda: pay.arguments(b"{}", "json"),
        DecodeError,
        ("pay, parameter 'order_id'", "missing required field"),
    ),
}


@pytest.mark.parametrize("wrote", TABLE)
def test_the_message_says_what_is_wrong(wrote: str) -> None:
    call, error, words = TABLE[wrote]
    with pytest.raises(error) as raised:
        call()
    assert [word for word in words if word not in str(raised.value)] == []
    assert len(str(raised.value)) < 500


async def test_a_sync_transaction_where_an_async_one_is_awaited() -> None:
    with pytest.raises(
        late.errors.InvalidTask, match="Connection is not async: there is nothing to await"
    ):
        await run_async(tx, None)


class Unopened(AsyncSession):
    """An async session. Its type alone is looked at."""


@pytest.mark.parametrize(
    "enqueue",
    [lambda tx: pay.enqueue(tx, 7), lambda tx: pay.options(delay=3).enqueue(tx, 7)],
    ids=["task", "options"],
)
def test_a_forgotten_await_names_the_task(
    enqueue: Callable[[Any], Awaitable[str]], told: list[str]
) -> None:
    enqueue(Unopened())
    gc.collect()
    assert set(told) == {"coroutine 'pay.enqueue' was never awaited"}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the warnings that Python makes when it drops a coroutine."""
    found: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(
            warnings, "showwarning", lambda message, *_, **__: found.append(str(message))
        )
        yield found
