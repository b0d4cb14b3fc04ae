"""Pydantic models and dataclasses as arguments, and what messages say of wrong calls."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
import sqlmodel
from sqlalchemy import orm

import late
from late.handler.fingerprint import fingerprint
from late.testing import drain
from tests.support import sqlite


class Line(pydantic.BaseModel):
    sku: str
    price: Decimal


class Cart(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, populate_by_name=True)
    day: date = pydantic.Field(alias="theDay")
    lines: list[Line]

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> Decimal:
        return sum((line.price for line in self.lines), Decimal())


@dataclass
class Address:
    street: str
    since: date


class Secret(pydantic.BaseModel):
    key: pydantic.SecretStr


class Base(orm.DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)


class Hero(sqlmodel.SQLModel, table=True):
    id: int | None = sqlmodel.Field(default=None, primary_key=True)


class Named(sqlmodel.SQLModel):
    name: str


CART = Cart(day=date(2026, 3, 1), lines=[Line(sku="a", price=Decimal("1.50"))])
HOME = Address("Main Street", date(2020, 2, 29))


@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_a_worker_gets_the_typed_objects(tmp_path: Path, codec: Any) -> None:
    url = sqlite.database(tmp_path / "shop.db")
    app = late.App(url, codec=codec)
    got: list[Any] = []

    @app.task
    def ship(
        cart: Cart, to: Address, more: list[Line], who: Named, gift: Line | None = None
    ) -> None:
        got.append((cart, to, more, who, gift))

    with sqlite3.connect(tmp_path / "shop.db") as tx:
        ship.enqueue(tx, CART, HOME, CART.lines, Named(name="Ada"), gift=CART.lines[0])
    tx.close()
    drain(app)
    assert got == [(CART, HOME, CART.lines, Named(name="Ada"), CART.lines[0])]


def task(function: Callable[..., Any]) -> late.Task[..., Any]:
    return late.App("sqlite:///x.db").task(function)


def buy(cart: Cart) -> None: ...


def anything(value: Any) -> None: ...


def listed(lines: list[Line]) -> None: ...


def ids(order_id: int, note: str = "") -> None: ...


@pytest.mark.parametrize(
    ("function", "value", "says"),
    [
        (buy, {"lines": []}, r"^buy, parameter 'cart': theDay: Field required - at `\$.cart`"),
        (
            anything,
            Secret(key="hush"),
            "^anything, parameter 'value': .*Secret cannot be read back",
        ),
        (anything, Order(id=1), "^anything, parameter 'value': .*Order is a row of a table"),
        (anything, [Hero(id=1)], "^anything, parameter 'value': .*Hero is a row of a table"),
        (ids, Order(id=1), "^ids, parameter 'order_id': .*Order is a row of a table: pass its id"),
        (ids, object(), "^ids, parameter 'order_id': .*object have no form in JSON"),
        (ids, late.RESULT, r"^ids, parameter 'order_id': .*late.RESULT is for task.then"),
        (listed, [{"sku": 1}], r"^listed, parameter 'lines': \w.* at `\$.lines\[0\]`"),
        (listed, [1], r"^listed, parameter 'lines': Input should be .* at `\$.lines\[0\]`"),
        (ids, 2**70, "^ids, parameter 'order_id': .*beyond 64 bits"),
        (ids, "1", r"^ids, parameter 'order_id': Expected `int`, got `str` - at `\$.order_id`"),
        (anything, "x" * 2**21, "^anything: arguments take"),
    ],
)
def test_the_task_and_the_parameter_are_named(function: Any, value: Any, says: str) -> None:
    with pytest.raises(late.InvalidTask, match=says) as raised:
        task(function).call(value)
    assert "hush" not in str(raised.value)


class Markup(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not the text"


def safe(text: str) -> str:
    found: str = pytest.importorskip("django.utils.safestring").mark_safe(text)
    return found


@pytest.mark.parametrize("codec", ["json", "msgpack"])
@pytest.mark.parametrize("make", [Markup, safe])
def test_a_subclass_of_str_is_plain_text(make: Callable[[str], str], codec: Any) -> None:
    def say(text: str, texts: list[str], others: Any) -> None: ...

    found = late.App("sqlite:///x.db", codec=codec).task(say)
    text = "<p>Zoë</p>"
    plain = found.encode((text, [text], {"a": text}), {})[1]
    assert found.encode((make(text), [make(text)], {"a": make(text)}), {})[1] == plain
    with pytest.raises(late.InvalidPayload, match="holds a NUL"):
        found.call(make("\0"), [], None)


def test_a_lazy_translation_is_refused_with_what_to_write() -> None:
    lazy = pytest.importorskip("django.utils.translation").gettext_lazy("Thank you")

    def say(text: str) -> None: ...

    with pytest.raises(late.InvalidPayload, match=r"^say, parameter 'text': .*str\(\.\.\.\)"):
        task(say).call(lazy)


def test_a_wrong_value_of_a_model_is_not_in_the_message() -> None:
    with pytest.raises(late.InvalidPayload, match=r"lines\.0\.price") as raised:
        task(buy).call({"theDay": "2026-01-01", "lines": [{"sku": "a", "price": "hush"}]})
    assert "hush" not in str(raised.value)


def rows(order: Order) -> None: ...


def heroes(found: list[Hero]) -> None: ...


@pytest.mark.parametrize(("function", "name"), [(rows, "order"), (heroes, "found")])
def test_a_parameter_that_is_a_row_is_refused(function: Any, name: str) -> None:
    with pytest.raises(
        late.ConfigError, match=rf"{function.__name__}: parameter '{name}' .* its id"
    ):
        task(function)


def test_a_forgotten_transaction_is_named() -> None:
    found: Any = task(ids)
    for enqueue in (found.enqueue, found.options(delay=1).enqueue):
        with pytest.raises(late.InvalidTask, match=r"^ids: no transaction given"):
            enqueue(order_id=1)
        for arguments in ((1,), (1, "n"), (1, 2, 3)):
            with pytest.raises(
                late.InvalidTask, match=r"^ids: the first argument of enqueue is the"
            ):
                enqueue(*arguments)
        with pytest.raises(late.InvalidTask, match=r"^ids: the first argument of enqueue is the"):
            enqueue(None, 1)


def test_a_named_rule_says_what_to_write() -> None:
    app = late.App("sqlite:///x.db")
    with pytest.raises(late.InvalidCron, match=r"'@daily' cannot be read: write '0 0 \* \* \*'"):
        app.schedule("@daily")


def test_the_fingerprint_has_the_fields_of_a_model() -> None:
    one = pydantic.create_model("M", a=(int, 1))
    two = pydantic.create_model("M", a=(str, "1"))
    made = [fingerprint(msgspec.defstruct("t", [("m", each)])) for each in (one, one, two)]
    assert made[0] == made[1] != made[2]


class Page(pydantic.BaseModel):
    number: int
    image: bytes


class Scan(Page):
    model_config = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


def test_bytes_of_a_model_are_as_it_says_or_refused_by_field() -> None:
    app = late.App("sqlite:///unused.db")

    @app.task
    def read(page: Page) -> None: ...

    @app.task
    def scan(page: Scan) -> None: ...

    with pytest.raises(
        late.InvalidPayload, match=r"Page\.image .* UTF-8: .*ser_json_bytes='base64'"
    ):
        read.call(Page(number=1, image=b"\xff"))
    call = scan.call(Scan(number=1, image=b"abc\xff"))
    assert call.payload == b'{"page":{"number":1,"image":"YWJj_w=="}}'
