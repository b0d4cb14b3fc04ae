"""The router between Celery and `late`: one side for each call, the share, what is not supported.

Celery is a stand-in that keeps what its broker was given; the serializers are those of kombu.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

import late
from late import celery
from late.celery import signals
from late.celery.router import Router
from late.celery.router.message import pack, unpack
from late.celery.router.shares import EVERY_S, Shares, takes
from late.control import Control
from late.control.status.celery_shares import read
from late.model.ids import new_id
from late.outbox import connect
from late.schema.engine import make_engine
from late.testing import drain
from tests.unit.cli_kit import Cli

NAME = "shop.send"


class Broker:
    """Celery's app, task and broker in one."""

    main = "shop"
    serializer = "json"

    def __init__(self) -> None:
        self.conf = SimpleNamespace(task_always_eager=False)
        self.sent: list[tuple[list[Any], dict[str, Any], dict[str, Any]]] = []
        self.faults = 0

    def gen_task_name(self, name: str, module: str) -> str:
        return f"shop.{name}"

    def task(self, **options: Any) -> Callable[..., Broker]:
        return lambda fn: self  # Its calls are told apart by the ids.

    def apply_async(self, args: Any, kwargs: Any, **options: Any) -> str:
        if self.faults:
            self.faults -= 1
            raise ConnectionError("no broker")
        self.sent.append((args, kwargs, options))
        return "sent at once"

    def AsyncResult(self, id: str) -> SimpleNamespace:
        return SimpleNamespace(id=id)


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def router(late_db: str, broker: Broker) -> Router:
    return Router(late.App(late_db), broker)


@pytest.fixture
def ran() -> list[Any]:
    return []


@pytest.fixture
def send(router: Router, ran: list[Any]) -> Any:
    @router.task
    def send(n: int) -> None:
        ran.append(n)

    return send


def ramp(url: str, **knobs: Any) -> None:
    with Control(url) as control:
        control.queues.change("queue", f"celery:{NAME}", knobs)


def report(url: str) -> Any:
    with Control(url) as control:
        return read(control, since_us=0, group="default")


def test_without_a_share_celery_gets_the_call_after_the_commit(
    router: Router, broker: Broker, send: Any, ran: list[Any]
) -> None:
    with connect(router.late_app.url) as tx, celery.transaction(tx):
        call = send.delay(1)
        assert broker.sent == []
    assert drain(router.late_app) == {"done": 1}
    assert broker.sent == [([1], {}, {"task_id": call.id, "headers": ANY})]
    assert ran == []


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_call_that_is_rolled_back_is_on_no_side(
    router: Router, broker: Broker, send: Any, ran: list[Any], share: float
) -> None:
    ramp(router.late_app.url, late_share=share)

    def fails() -> None:
        with connect(router.late_app.url) as tx, celery.transaction(tx):
            send.delay(1)
            raise RuntimeError("roll back")

    with pytest.raises(RuntimeError, match="roll back"):
        fails()
    send.delay(2)  # Without a transaction it commits at once.
    assert drain(router.late_app) == {"done": 1}
    assert [args for args, _, _ in broker.sent] == ([] if share else [[2]])
    assert ran == ([2] if share else [])


def test_each_call_of_a_share_is_on_exactly_one_side(
    router: Router, broker: Broker, send: Any, ran: list[Any]
) -> None:
    ramp(router.late_app.url, late_share=0.5)
    engine = make_engine(router.late_app.url)
    with engine.begin() as tx, celery.transaction(tx):
        for n in range(200):
            send.delay(n)
    engine.dispose()
    drain(router.late_app)
    on_celery = [args[0] for args, _, _ in broker.sent]
    assert sorted(on_celery + ran) == list(range(200))
    assert on_celery
    assert ran


def test_a_call_on_late_sends_the_signals_of_a_call(router: Router, send: Any) -> None:
    ramp(router.late_app.url, late_share=1.0)
    told: list[str] = []

    def tell(sender: str, **_: Any) -> None:
        told.append(sender)

    signals.before_task_publish.connect(tell)
    try:
        send.delay(1)
    finally:
        signals.before_task_publish.disconnect(tell)
    assert told == [NAME]


def test_a_higher_share_keeps_what_a_lower_one_takes() -> None:
    ids = [f"call-{n}" for n in range(10_000)]
    taken = [{each for each in ids if takes(share, each)} for share in (0.0, 0.01, 0.5, 1.0)]
    assert taken[0] == set()
    assert taken[0] <= taken[1] <= taken[2] <= taken[3] == set(ids)
    assert 50 < len(taken[1]) < 200
    assert 4_500 < len(taken[2]) < 5_500


def test_a_change_is_live_after_two_seconds_and_a_failed_read_keeps_the_last(
    late_db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    shares = Shares(lambda: late_db, clock=lambda: now)
    assert shares.of(NAME) == 0
    ramp(late_db, late_share=0.25)
    assert shares.of(NAME) == 0
    now += EVERY_S
    assert shares.of(NAME) == 0.25
    monkeypatch.setattr(shares, "_url", lambda: f"{late_db}.is.not.there")
    ramp(late_db, closed=True)
    now += EVERY_S
    assert shares.of(NAME) == 0.25
    monkeypatch.setattr(shares, "_url", lambda: late_db)
    now += EVERY_S
    assert shares.of(NAME) == 0
    ramp(late_db, closed=None)
    now += EVERY_S
    assert shares.of(NAME) == 0.25


def test_what_late_does_not_support_goes_to_celery_and_is_counted(
    router: Router, broker: Broker, send: Any, ran: list[Any]
) -> None:
    ramp(router.late_app.url, late_share=1.0)
    stays = router.task(rate_limit="1/d", name="shop.limited")(lambda: ran.append("limited"))
    send.apply_async((1,), link={"task": "next"})
    send.apply_async((2,), task_id=str(new_id(0)))
    send.apply_async((3,), priority=12)
    stays.delay()
    drain(router.late_app)
    assert ran == []
    assert sorted(len(options) for _, _, options in broker.sent) == [2, 2, 3, 3]
    found = report(router.late_app.url)
    assert {each.task: each.unsupported for each in found} == {
        NAME: {"link": 1, "task_id": 1, "priority": 1},
        "shop.limited": {"rate_limit": 1},
    }


def test_the_id_of_a_caller_decides_the_side_and_leads_to_its_call(
    router: Router, broker: Broker, send: Any, ran: list[Any]
) -> None:
    ramp(router.late_app.url, late_share=0.5)
    ids = [f"order-{n}" for n in range(20)]
    calls = [send.apply_async((n,), task_id=name) for n, name in enumerate(ids)]
    drain(router.late_app)
    assert [call.id for call in calls] == ids
    taken = [n for n, name in enumerate(ids) if takes(0.5, name)]
    assert sorted(ran) == taken
    assert sorted(args[0] for args, _, _ in broker.sent) == sorted({*range(20)} - {*taken})
    for n, name in enumerate(ids):
        assert isinstance(router.AsyncResult(name), celery.AsyncResult) == (n in taken)
    assert report(router.late_app.url)[0].unsupported == {}


def test_a_second_call_with_an_id_that_late_has_is_celerys(
    router: Router, broker: Broker, send: Any, ran: list[Any]
) -> None:
    ramp(router.late_app.url, late_share=1.0)
    with connect(router.late_app.url) as tx, celery.transaction(tx):
        for n in (1, 1, 2):
            send.apply_async((n,), task_id="mine")
    assert drain(router.late_app) == {"done": 3}
    assert ran == [1]
    assert sorted(args[0] for args, _, _ in broker.sent) == [1, 2]
    assert {options["task_id"] for _, _, options in broker.sent} == {"mine"}
    assert report(router.late_app.url)[0].unsupported == {"task_id": 2}


def test_a_task_with_a_rate_goes_to_a_queue_with_that_rate(
    router: Router, broker: Broker, ran: list[Any]
) -> None:
    ramp(router.late_app.url, late_share=1.0)
    limited = router.task(rate_limit="60/m", name=NAME)(lambda: ran.append("limited"))
    limited.delay()
    drain(router.late_app)
    assert (ran, broker.sent) == (["limited"], [])
    assert router.late_app.first_rates == {f"default.{NAME}": 1.0}


def test_a_broker_that_is_away_gets_the_call_when_it_is_back(
    router: Router, broker: Broker, send: Any
) -> None:
    broker.faults = 1
    call = send.delay(1)
    assert drain(router.late_app, wait_s=5) == {"done": 1}
    assert [options["task_id"] for _, _, options in broker.sent] == [call.id]
    (found,) = report(router.late_app.url)
    assert (found.celery.calls, found.celery.done, found.celery.errors) == (1, 1, 1)


def test_an_eager_app_is_left_to_celery(router: Router, broker: Broker, send: Any) -> None:
    broker.conf.task_always_eager = True
    assert send.delay(1) == "sent at once"
    assert drain(router.late_app) == {}


def test_a_message_keeps_moments_and_values_of_any_serializer() -> None:
    before = datetime.now(UTC)
    args, kwargs, options = unpack(
        pack((1,), {"at": before}, {"countdown": 60, "expires": 90, "connection": object()}, None)
    )
    assert (args, kwargs) == ([1], {"at": before})
    assert set(options) == {"eta", "expires"}
    assert 60 <= (options["eta"] - before).total_seconds() < 120
    assert (options["expires"] - options["eta"]).total_seconds() == 30
    args, _, _ = unpack(pack(({1, 2},), {}, {}, "pickle"))
    assert args == [{1, 2}]


def test_the_command_sets_shows_and_undoes(cli: Cli) -> None:
    turned = cli.fine("celery", "ramp", NAME, "50")
    assert f"{NAME}: 50% of the calls go to late; before: 0% of the calls go to late" in turned.out
    assert "producers follow within 5 s" in turned.out
    assert f"no live worker of late runs {NAME}" in turned.err
    off = cli.fine("celery", "ramp", NAME, "off")
    assert "off, all calls go to Celery, the share of 50% is kept" in off.out
    assert "no live worker" not in off.err
    assert "50% off" in cli.fine("celery", "ramp").out
    cli.fine("celery", "ramp", NAME, "on")
    turned = cli.fine("celery", "ramp", NAME, "0.5%", "--json").json
    assert turned["after"] == {"late_share": 0.005}
    assert cli.fine("knobs", "--history", "--json").json["changes"][0]["action"] == "queue.set"
    cli.fine("knobs", "rollback", turned["audit_id"])
    (shown,) = cli.fine("celery", "ramp", NAME, "--json").json["tasks"]
    assert (shown["task"], shown["share"], shown["on"]) == (NAME, 0.5, True)
    for wrong in ("101", "-1", "nan", "half"):
        assert "0..100, on or off" in cli.refused("celery", "ramp", "--", NAME, wrong)
    for share in ("50", "off"):
        assert f"{share} of which task?" in cli.refused("celery", "ramp", share)


def test_several_tasks_are_ramped_at_once(cli: Cli) -> None:
    cli.fine("celery", "ramp", "shop.a", "mail.b", "1")
    shown = cli.fine("celery", "ramp", "shop.*", "--json").json
    assert [each["task"] for each in shown["tasks"]] == ["shop.a"]
    turned = cli.fine("celery", "ramp", "shop.*", "25", "--json").json["changes"]
    assert [(each["name"], each["after"]) for each in turned] == [
        ("celery:shop.a", {"late_share": 0.25}),
    ]
    assert "mail.b: 50% of the calls" in cli.fine("celery", "ramp", "--all", "50").out
    tasks = cli.fine("celery", "ramp", "--json").json["tasks"]
    assert {each["share"] for each in tasks} == {0.5}
    assert "no task fits 'none.*'" in cli.refused("celery", "ramp", "none.*", "1")
