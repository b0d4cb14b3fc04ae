"""Subjects in all places that write or open payloads, and the commands about their keys."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy

import late
from late.api.access.peer_keys import Keyring
from late.api.pull import deliveries
from late.api.pull.deliveries import Local, TakeRequest
from late.control import Control
from late.dispatcher import subject_keys as fetching
from late.errors import Conflict
from late.handler.classify import GIVEN_BACK
from late.model.task import Attempt
from late.outbox import connect
from late.payload.codec import Encrypted
from late.payload.subject_keys import SubjectKeyNeeded
from late.schema import migrate
from late.schema.engine import make_engine, writing
from late.schema.version import SCHEMA_VERSION
from late.testing import assert_enqueued, drain, inline
from tests.integration import subject_tasks
from tests.integration.test_migrate import urls
from tests.security.sealed_kit import read
from tests.security.subject_kit import BOTH, OLD, keys_in, later, owned_app, ring
from tests.unit.cli_kit import Cli, cli

__all__ = ["cli", "urls"]


def test_a_producer_with_sqlalchemy_is_served(url: str) -> None:
    app, ran = owned_app(url)
    task = app.tasks["mail"]
    engine = make_engine(url)
    with writing(engine) as connection:
        task.options(subject="ada", unique_key="u").enqueue(connection, 1)
        task.options(subject="ada", unique_key="u").enqueue(connection, 1)
        app.enqueue_many(
            connection, [task.options(subject=f"s{n % 110}").call(10 + n) for n in range(120)]
        )
    engine.dispose()
    assert len(keys_in(url)) == 111
    assert drain(app, wait_s=2.0) == {"done": 121}
    assert sorted(ran) == [1, *range(10, 130)]


def test_batches_and_tasks_by_name_have_subjects(url: str) -> None:
    app, _ = owned_app(url)
    found: list[int] = []

    @app.task(batch=10)
    async def many(batch: late.Batch[int]) -> None:
        found.extend(item.value for item in batch)

    with connect(url) as tx:
        for n in range(5):
            app.send(tx, "many", {"item": n}, subject="ada")
    assert drain(app, wait_s=2.0) == {"done": 5}
    assert sorted(found) == list(range(5))


def test_a_child_process_reads_the_key_itself(url: str, tmp_path: Path) -> None:
    app = late.App(url, codec=subject_tasks.app.codec)
    app.registry._tasks.update(subject_tasks.app.tasks)
    out = tmp_path / "pid"
    with connect(url) as tx:
        call = subject_tasks.write_pid.options(subject="ada").call(str(out))
        subject_tasks.app.enqueue(tx, call)
    assert drain(app, wait_s=2.0) == {"done": 1}
    assert int(out.read_text()) != os.getpid()


def test_helpers_for_tests_know_subjects(url: str) -> None:
    app, ran = owned_app(url)
    task = app.tasks["mail"]
    with inline(app) as box:
        task.options(subject="ada").enqueue(None, 1)  # type: ignore[call-overload]
        box.run()
    assert ran == [1]
    later(app)
    if url.startswith("spanner"):
        return  # A transaction that has written to the log cannot read it there.
    with connect(url) as tx:
        task.options(subject="ada").enqueue(tx, 2)
        (found,) = assert_enqueued(tx, task, args={"cents": 2})
        assert found.options.subject is not None
    later(app)
    assert len(assert_enqueued(url, task, count=1)) == 1


async def test_a_consumer_gets_what_the_key_opens(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = owned_app(url)
    task = app.tasks["mail"]
    with connect(url) as tx:
        task.options(subject="ada").enqueue(tx, 1)
    key = ring(app).unwrap(*keys_in(url).copy().popitem())  # type: ignore[arg-type]
    (row,) = app._rows.many(
        [task.options(subject="ada").call(5)], None, dict.fromkeys(keys_in(url), key)
    )
    record, options = read(row)
    attempt = Attempt("default", record, 1, 0, 1, 0, options)
    answers: list[Any] = []
    pool = SimpleNamespace(answer=lambda hold, verdict: answers.append(verdict))
    hold = SimpleNamespace(attempt=attempt, started_us=0, serial=1, until_us=9)

    async def receive(*_: Any, **__: Any) -> list[Any]:
        return [(pool, hold)]

    monkeypatch.setattr(deliveries, "receive", receive)
    pools: Any = {"default": pool}
    local = Local(
        pools, worker="w", groups=["default"], codec=app.codec, keys=Keyring.of(b"k"), url=url
    )
    ask = TakeRequest("default", ("default",), 1, 0.1, 9.0, "c", None)
    (delivery,) = await local.take(ask)
    assert delivery.payload == b'{"cents":5}'
    # Where the database is away, the task goes back
    later(app)
    monkeypatch.setattr(fetching, "AWAY_S", 0.0)
    monkeypatch.setattr(fetching, "load", lambda *_: (_ for _ in ()).throw(OSError()))
    assert await local.take(ask) == []
    assert answers == [GIVEN_BACK]
    monkeypatch.undo()
    # And after the drop it is a dead letter
    monkeypatch.setattr(deliveries, "receive", receive)
    with Control(url) as control:
        await asyncio.to_thread(control.subject_keys.drop, "ada")
    assert await local.take(ask) == []
    assert (answers[1].kind, answers[1].reason) == ("dead", "subject_dropped")


def test_waiting_tasks_are_no_misfits(url: str) -> None:
    app, _ = owned_app(url)
    with connect(url) as tx:
        app.tasks["mail"].options(subject="ada").enqueue(tx, 1)
    later(app)
    with Control(url) as control:
        assert control.misfits(app.tasks).misfits == ()


def test_the_commands(url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    app, _ = owned_app(url)
    with connect(url) as tx:
        for subject in ("ada", "bea"):
            app.tasks["mail"].options(subject=subject).enqueue(tx, 1)
    assert "give --yes" in cli.refused("keys", "drop", "ada", "--url", url)
    assert "no subject 'eve'" in cli.refused("keys", "drop", "eve", "--yes", "--url", url)
    assert None not in keys_in(url).values()
    assert "dropped" in cli.fine("keys", "drop", "ada", "--yes", "--url", url).out
    assert "before" in cli.fine("keys", "drop", "ada", "--yes", "--url", url).out
    with Control(url) as control:
        entries = [each for each in control.audit.entries() if each.action == "keys.drop"]
    assert len(entries) == 1
    assert "ada" not in entries[0].subject
    monkeypatch.setattr(subject_tasks.app, "codec", Encrypted(keys=BOTH, current="k2"))
    target = "tests.integration.subject_tasks:app"
    assert "1 keys wrapped anew" in cli.fine("keys", "rewrap", target, "--url", url).out
    monkeypatch.setattr(subject_tasks.app, "codec", Encrypted(keys=OLD, current="k1"))
    failed = cli("keys", "rewrap", target, "--url", url)
    assert failed.code == 1
    assert "1 not opened" in failed.out


def test_the_way_back_is_closed_while_there_are_keys(urls: Any) -> None:
    url = urls()
    migrate.upgrade(url)
    app, _ = owned_app(url)
    with connect(url) as tx:
        app.tasks["mail"].options(subject="ada").enqueue(tx, 1)
    with pytest.raises(Conflict, match="late_subject_key has keys"):
        migrate.downgrade(url, "0014")
    assert migrate.current(url) == SCHEMA_VERSION
    with Control(url) as control:
        control.subject_keys.drop("ada")
    assert migrate.downgrade(url, "0014") == ["0019", "0018", "0017", "0016", "0015"]
    engine = make_engine(url)
    assert not sqlalchemy.inspect(engine).has_table("late_subject_key")
    engine.dispose()


def test_a_key_is_needed_before_a_row_is_made() -> None:
    app, _ = owned_app("sqlite:///x.db")
    with pytest.raises(SubjectKeyNeeded):
        app.row(app.tasks["mail"].options(subject="ada").call(1))
