"""`ctx.count`: each kind of handler, once for each task that is done, and bounded."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import select

import late
from late.api import handler_server, schemas
from late.api.errors import BadRequest
from late.api.grpc import convert
from late.api.handler_messages import response_of
from late.dispatcher.push import grpc_caller, responses
from late.errors import ConfigError
from late.handler import counts
from late.handler.batch import Item
from late.handler.classify import Verdict
from late.handler.context import Context
from late.handler.outcomes import AlreadyDone, Discard, Retry
from late.model.offers import answer_of, outcome_of
from late.model.task import Outcome, Policy, Usage
from late.schema.engine import make_engine, reading
from late.schema.tables import settlement
from late.testing import drain
from late.v1 import queue_pb2
from tests.integration.shared_kit import enqueue
from tests.support import sqlite
from tests.unit.dispatcher_kit import NOW_US, attempt

SOON = late.Retry(base=0.05, cap=0.1)


def context(name: str, *, shadow: bool = False) -> Context:
    of = msgspec.structs.replace(attempt(name), shadow=shadow)
    return Context(of, NOW_US, 30.0, 3, "", lambda attempt: None)


@pytest.fixture
def app(tmp_path: Path) -> late.App:
    url = sqlite.database(tmp_path / "shop.db")
    return late.App(url)


def rows(app: late.App) -> list[Usage]:
    engine = make_engine(app.url)
    with reading(engine) as connection:
        found = connection.execute(select(settlement.c.usage)).scalars().all()
    engine.dispose()
    return [
        each for text in found for each in msgspec.json.decode(text or "[]", type=tuple[Usage, ...])
    ]


def counted(app: late.App) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for each in rows(app):
        for name, number in each.counts:
            found[each.outcome, name] += number
    return found


def test_every_kind_of_handler_counts_once_for_each_task_that_is_done(app: late.App) -> None:
    # Given handlers in threads (many to a chunk), on the loop, in a transaction and with a result
    @app.task(retry=SOON)
    def plain(ctx: late.Context, n: int) -> None:
        ctx.count("plain")
        ctx.count("items", n)
        ctx.count("items")
        if n % 5 == 0 and ctx.attempt == 1:
            raise ValueError("counted, and then failed")

    @app.task()
    async def quick(ctx: late.AsyncContext, n: int) -> None:
        ctx.count("quick")

    @app.task()
    async def waits(ctx: late.AsyncContext, n: int) -> None:
        ctx.count("waits")
        await asyncio.sleep(0)

    @app.task(transaction=True, retry=SOON)
    def shared(ctx: late.Context, n: int) -> None:
        ctx.count("shared")
        if n % 5 == 1 and ctx.attempt == 1:
            raise ValueError("rolled back")

    @app.task(transaction=True)
    async def shared_async(ctx: late.AsyncContext, n: int) -> None:
        ctx.count("shared_async")

    @app.task(result_ttl=60)
    def result(ctx: late.Context, n: int) -> int:
        ctx.count("result")
        return n

    @app.task()
    def discards(ctx: late.Context, n: int) -> None:
        ctx.count("never")
        raise Discard("not wanted")

    @app.task()
    def nothing(n: int) -> None:
        pass

    tasks: list[Any] = [plain, quick, waits, shared, shared_async, result, discards, nothing]
    enqueue(app, [task.call(n) for n in range(20) for task in tasks])
    # When they are worked on
    assert drain(app) == {"done": 140, "discarded": 20}
    # Then each task that is done has counted once
    assert counted(app) == {
        ("done", "plain"): 20, ("done", "items"): sum(range(20)) + 20, ("done", "quick"): 20,
        ("done", "waits"): 20, ("done", "shared"): 20, ("done", "shared_async"): 20,
        ("done", "result"): 20,
    }  # fmt: skip


def test_a_repeat_whose_effects_are_done_counts_for_the_run_that_was_lost() -> None:
    ctx = context("repeat")
    ctx.count("orders", 2)
    verdict = ctx.counted(AlreadyDone())
    assert getattr(verdict, "counts", None) == (("orders", 2),)


def test_a_shared_transaction_takes_counts_back_with_the_effects(app: late.App) -> None:
    @app.task(transaction=True)
    def shared(ctx: late.Context) -> None:
        ctx.count("orders")
        raise AlreadyDone

    enqueue(app, [shared.call()])
    assert drain(app) == {"done": 1}
    assert counted(app) == {}


@pytest.mark.parametrize("ended", [Retry(after_s=1.0), Discard("no")])
def test_what_is_not_done_counts_nothing(ended: object) -> None:
    ctx = context("again")
    ctx.count("orders")
    assert getattr(ctx.counted(ended), "counts", None) == ()


def test_a_shadow_and_a_zero_count_nothing() -> None:
    ctx = context("tried", shadow=True)
    ctx.count("orders")
    assert ctx.counted(None) is None
    real = context("tried")
    real.count("orders", 0)
    assert real.counted(None) is None


@pytest.mark.parametrize("name", ["", "1st", "a b", "x" * 27, "naïve", "a\n", 7])
def test_a_wrong_name_is_one_line(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"^wrong: ctx\.count\(.*\): a name has a letter[^\n]*$"):
        context("wrong").count(name)


@pytest.mark.parametrize("number", [-1, 1.5, True, "2", 10**13])
def test_a_wrong_number_is_one_line(number: Any) -> None:
    with pytest.raises(ConfigError, match=r"expected a whole number from 0 to 1,000,000,000,000$"):
        context("wrong").count("orders", number)


def test_a_task_has_a_bounded_number_of_names() -> None:
    for at in range(counts.NAMES_MAX):
        context("many").count(f"order{at}")
    context("many").count("order0")
    context("other").count("order")
    with pytest.raises(ConfigError, match=r"a task counts at most 16 names, .* an id is no name"):
        context("many").count("order16")


def test_an_offered_attempt_brings_its_counts_back() -> None:
    of = attempt("away")
    ended = Outcome(of, "done", 1, 2, counts=(("orders", 3),))
    answer = msgspec.json.decode(
        msgspec.json.encode(answer_of(ended, Policy())), type=type(answer_of(ended, Policy()))
    )
    assert outcome_of(of, answer, 0.0).counts == (("orders", 3),)


def test_a_child_process_brings_its_counts_back() -> None:
    from late.dispatcher.local.child_protocol import Reply, decode_from_child, frame
    from late.handler.classify import Verdict

    sent = Reply(Verdict("done", counts=(("orders", 3),)))
    assert decode_from_child(frame(sent)[4:]) == sent


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_counts_for_each_item_that_is_done(app: late.App, is_async: bool) -> None:
    def work(batch: late.Batch[int]) -> None:
        for item in batch:
            item.count("rows", item.value)
            if item.value == 3 and item.attempt == 1:
                item.fail(ValueError("counted, and then failed"))

    async def work_async(batch: late.Batch[int]) -> None:
        work(batch)

    task = app.task(name="load", batch=10, retry=SOON)(work_async if is_async else work)
    enqueue(app, [task.call(n) for n in range(8)])
    assert drain(app, wait_s=5.0) == {"done": 8}
    assert counted(app) == {("done", "rows"): sum(range(8))}


def test_an_item_refuses_what_cannot_be_added_up() -> None:
    item = Item(1, name="items")
    with pytest.raises(ConfigError, match=r"^items: ctx\.count\('a b'\): a name has a letter"):
        item.count("a b")


def push(numbers: dict[str, int], **more: Any) -> Any:
    answer = responses.http_status(200, msgspec.json.encode({"outcome": "done", "counts": numbers}),
                                   None, "target")  # fmt: skip
    return responses.as_recorded(answer, msgspec.structs.replace(attempt("push"), **more))


def test_the_answer_of_a_called_service_carries_counts() -> None:
    assert push({"orders": 2, "items": 5}).counts == (("items", 5), ("orders", 2))
    assert push({"orders": 2}, shadow=True) == responses.DONE
    assert push({}) == responses.DONE
    # A body of the service's own, which happens to have the word, says nothing.
    own = responses.http_status(200, b'{"counts": {"orders": 2}}', None, "target")
    assert own == responses.DONE


@pytest.mark.parametrize("numbers", [{"a b": 1}, {"orders": -1}, {"orders": 10**13}])
def test_a_wrong_count_of_an_answer_fails_the_attempt(numbers: dict[str, int]) -> None:
    verdict = push(numbers)
    assert (verdict.kind, verdict.reason) == ("failed", "bad_answer")


def test_an_answer_over_grpc_carries_counts() -> None:
    numbers = (("items", 5), ("orders", 2))
    response = response_of(Verdict("done", counts=numbers))
    assert grpc_caller._judge(response, "target", None).counts == numbers
    answer = queue_pb2.Answer(receipt="r", done=response.done)
    assert convert.verdict_of(answer).counts == numbers


@pytest.mark.parametrize("keep", [False, True])
def test_a_service_of_our_own_sends_what_its_handler_counts(keep: bool) -> None:
    ctx = context("served")
    ctx.count("orders", 2)
    verdict = handler_server._judged({"id": 7}, keep, ctx)
    assert (verdict.counts, verdict.result) == ((("orders", 2),), b'{"id":7}' if keep else None)
    assert handler_server._judged(Retry(after_s=1.0), keep, ctx).counts == ()


def test_an_ack_over_http_carries_counts_of_a_bound() -> None:
    body = {"receipt": "r", "counts": {"orders": 2}}
    assert schemas.parse(msgspec.json.encode(body), schemas.Ack).counts == {"orders": 2}
    body["counts"] = {f"n{n}": 1 for n in range(17)}
    with pytest.raises(BadRequest, match="counts"):
        schemas.parse(msgspec.json.encode(body), schemas.Ack)
