"""Fingerprints of signatures, and the text in which a worker declares what it handles."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Any, Literal, Optional

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import late
from late.app.handlers import handlers_of
from late.handler.fingerprint import UNKNOWN
from late.model import handlers
from late.store.postgres import statements as postgres
from late.store.spanner import membership as spanner
from late.store.sqlite import statements as sqlite
from tests.unit.fingerprint_kit import Colour, Item, of, plain, rich


def test_a_fingerprint_is_the_same_in_every_process_and_version_of_python() -> None:
    assert of(plain) == "dc818baa"
    assert of(rich) == "34b2ce62"
    code = "from tests.unit.fingerprint_kit import *; print(of(plain), of(rich))"
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", code]
        found = subprocess.run(command, env=env, capture_output=True, text=True)
        assert found.stdout.split() == [of(plain), of(rich)], found.stderr


def test_what_changes_the_arguments_changes_it() -> None:
    def one_more(order: int, currency: str = "EUR", *, by: str) -> None: ...
    def one_more_optional(order: int, currency: str = "EUR", note: str = "") -> None: ...
    def one_less(order: int) -> None: ...
    def another_name(order_id: int, currency: str = "EUR") -> None: ...
    def another_type(order: str, currency: str = "EUR") -> None: ...
    def required(order: int, currency: str) -> None: ...
    def by_name_only(order: int, *, currency: str = "EUR") -> None: ...
    def bounded(order: Annotated[int, msgspec.Meta(ge=1)], currency: str = "EUR") -> None: ...
    def untyped(order, currency="EUR") -> None: ...  # type: ignore[no-untyped-def]

    changed = (one_more, one_more_optional, one_less, another_name, another_type, required,
               by_name_only, bounded, untyped)  # fmt: skip
    assert len({of(each) for each in (plain, *changed)}) == 1 + len(changed)


def test_what_changes_no_argument_does_not() -> None:
    def another_default(order: int, currency: str = "CHF") -> None:
        """Charge it."""

    def with_context(ctx: late.Context, order: int, currency: str = "EUR") -> int: ...  # type: ignore[empty-body]
    async def coroutine(order: int, currency: str = "EUR") -> None: ...
    def told(order: Annotated[int, msgspec.Meta(title="t", description="d")], currency: str = "EUR") -> None: ...  # noqa: E501  # fmt: skip

    assert {of(each) for each in (another_default, with_context, coroutine, told)} == {of(plain)}
    assert of(plain, "bill") == of(plain), "a name is none of its arguments"


def test_types_that_mean_the_same_are_the_same() -> None:
    def optional(a: Optional[int]) -> None: ...  # noqa: UP045
    def union(a: int | None) -> None: ...
    def other_way(a: None | int) -> None: ...  # noqa: RUF036
    def one(a: Literal["x", "y"]) -> None: ...
    def other(a: Literal["y", "x"]) -> None: ...

    assert of(optional) == of(union) == of(other_way)
    assert of(one) == of(other) != of(union)


def test_the_fields_of_a_class_count_and_its_docstring_does_not() -> None:
    def function(fields: list[tuple[str, Any]], doc: str) -> str:
        made = msgspec.defstruct("Made", fields, namespace={"__doc__": doc})

        def takes(item: Any) -> None: ...

        takes.__annotations__["item"] = made
        return of(takes)

    base = function([("title", str), ("n", int)], "One.")
    assert function([("title", str), ("n", int)], "Two.") == base
    assert function([("name", str), ("n", int)], "One.") != base
    assert function([("title", int), ("n", int)], "One.") != base
    assert function([("n", int)], "One.") != base


_TYPES = [int, str, bool, float, list[int], int | None, Item, Colour]
_names = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=5)


@given(
    st.data(), _names, st.lists(st.sampled_from(range(len(_TYPES))), min_size=5, max_size=5),
    st.lists(st.booleans(), min_size=5, max_size=5),
)  # fmt: skip
def test_order_says_nothing_and_a_parameter_more_does(
    data: st.DataObject, names: list[str], kinds: list[int], optional: list[bool]
) -> None:
    parameters = list(zip(names, kinds, optional, strict=False))

    def made(these: list[tuple[str, int, bool]]) -> str:
        signs = [f"{name}: T[{kind}]" + (" = None" if may else "") for name, kind, may in these]
        scope: dict[str, Any] = {"T": _TYPES}
        exec(f"def f({', '.join(['*', *signs] if signs else [])}): ...", scope)
        return of(scope["f"])

    assert made(data.draw(st.permutations(parameters))) == made(parameters)
    for may_be_left_out in (False, True):
        assert made([*parameters, ("z", 0, may_be_left_out)]) != made(parameters)


def test_an_app_declares_names_former_names_and_routed_queues() -> None:
    app = late.App("sqlite:///nowhere.db")
    app.task(name="charge", aliases=("bill",))(plain)
    app.remote("ship", target="pull")
    app.remote("pack", target="pull", like=plain)
    app.route("mail", target="pull")
    assert handlers_of(app) == {
        "charge": of(plain), "bill": of(plain), "pack": of(plain), "ship": UNKNOWN, "@mail": UNKNOWN
    }  # fmt: skip


def test_a_batch_is_as_the_task_it_is_a_batch_of() -> None:
    app = late.App("sqlite:///nowhere.db")

    @app.task(batch=10)
    def index(items: late.Batch[Item]) -> None: ...

    def one(item: Item) -> None: ...

    assert handlers_of(app) == {"index": of(one)}


def test_the_text_of_a_worker_is_read_again() -> None:
    declared = {"charge": "f44b8b9b", "@mail": ""}
    text = handlers.text_of(declared)
    assert text == '{"@mail":"","charge":"f44b8b9b"}'
    found = handlers.read(text)
    assert found == declared
    assert handlers.handles(found, "default", "charge")
    assert handlers.handles(found, "mail", "anything")
    assert not handlers.handles(found, "default", "anything")


@pytest.mark.parametrize("text", [None, "", "{", "[]", "null", '{"a": 1}'])
def test_a_text_of_another_version_says_nothing(text: str | None) -> None:
    assert handlers.read(text) is None


def test_too_many_names_are_not_declared() -> None:
    assert handlers.text_of({f"n{n}": "f44b8b9b" for n in range(100_000)}) is None


def test_five_hundred_names_are_some_twenty_kilobytes() -> None:
    text = handlers.text_of({f"shop.orders.tasks.number_{n}": "f44b8b9b" for n in range(500)})
    assert text is not None
    assert 10_000 < len(text) < 25_000


def test_no_heartbeat_writes_or_reads_the_column() -> None:
    statements = (
        *(sqlite.HEARTBEAT, sqlite.WORKERS, postgres.HEARTBEAT, postgres.WORKERS),
        *(spanner._RENEW, spanner._JOIN, spanner._FLEET),
    )
    assert not [each for each in statements if "handlers" in each or "select *" in each.lower()]
