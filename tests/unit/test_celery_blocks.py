"""A call after the commit of its transaction is not lost without an error."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import late
from late import celery
from late.celery import transactions
from late.celery.blocks import NotCommitted
from late.testing import drain, inline


@pytest.fixture
def app(late_db: str) -> celery.Celery:
    app = celery.Celery("shop", late_app=late.App(late_db))
    app.task(name="mail")(lambda: None)
    return app


@pytest.fixture(params=["session", "scoped", "connection"])
def tx(app: celery.Celery, request: pytest.FixtureRequest) -> Iterator[Any]:
    engine = create_engine(app.late_app.url)
    if request.param == "connection":
        with engine.connect() as found:
            yield found
    elif request.param == "session":
        with Session(engine) as session:
            yield session
    else:
        scoped = scoped_session(sessionmaker(engine))
        yield scoped
        scoped.remove()
    engine.dispose()


def begin(tx: Any) -> None:
    tx.execute(text("SELECT 1"))


def late_call(app: celery.Celery, tx: Any, *before: str) -> None:
    """A call in a block whose transaction has ended."""
    with celery.transaction(tx):
        begin(tx)
        for method in before or ("commit",):
            getattr(tx, method)()
        app.send_task("mail")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_call_after_the_transaction_is_refused_at_the_end_of_the_block(
    app: celery.Celery, tx: Any, end: str
) -> None:
    with pytest.raises(NotCommitted, match="mail: it was called after the end"):
        late_call(app, tx, end)
    tx.rollback()
    assert drain(app.late_app) == {}


def test_a_session_that_is_closed_in_the_block_loses_nothing_silently(app: celery.Celery) -> None:
    def lose() -> None:
        with celery.transaction(Session(engine)) as tx, tx:
            begin(tx)
            tx.commit()
            app.send_task("mail")

    engine = create_engine(app.late_app.url)
    with pytest.raises(NotCommitted):
        lose()
    with Session(engine) as tx, pytest.raises(NotCommitted):
        late_call(app, tx, "close")
    with Session(engine) as tx, celery.transaction(tx):
        begin(tx)
        tx.close()
        app.send_task("mail")
        tx.commit()
    assert drain(app.late_app) == {"done": 1}
    engine.dispose()


def test_calls_that_are_committed_are_taken(app: celery.Celery, tx: Any) -> None:
    with celery.transaction(tx):
        app.send_task("mail")
        tx.commit()
        app.send_task("mail")
        tx.commit()
        begin(tx)
    with celery.transaction(tx):
        app.send_task("mail")
    tx.commit()
    with celery.transaction(tx):
        pass
    assert drain(app.late_app) == {"done": 3}


def test_a_call_that_is_rolled_back_is_meant_so(app: celery.Celery, tx: Any) -> None:
    with celery.transaction(tx):
        begin(tx)
        tx.commit()
        app.send_task("mail")
        tx.rollback()
    assert drain(app.late_app) == {}


def test_a_revocation_after_the_commit_is_a_call(app: celery.Celery, tx: Any) -> None:
    def revoke() -> None:
        with celery.transaction(tx):
            result = app.send_task("mail")
            tx.commit()
            result.revoke()

    with pytest.raises(NotCommitted, match="revoke"):
        revoke()


def test_a_savepoint_ends_no_transaction(app: celery.Celery, tx: Any) -> None:
    with celery.transaction(tx):
        begin(tx)
        with tx.begin_nested():
            begin(tx)
        app.send_task("mail")
    tx.commit()
    assert drain(app.late_app) == {"done": 1}

    def lose() -> None:
        with celery.transaction(tx):
            begin(tx)
            tx.commit()
            app.send_task("mail")
            with tx.begin_nested():
                begin(tx)

    with pytest.raises(NotCommitted):
        lose()


def test_a_block_within_a_block_counts_for_both(app: celery.Celery, tx: Any) -> None:
    def lose() -> None:
        with celery.transaction(tx):
            begin(tx)
            tx.commit()
            with celery.transaction(tx):
                app.send_task("mail")

    with pytest.raises(NotCommitted):
        lose()


def test_the_error_of_the_block_is_the_one_that_counts(app: celery.Celery, tx: Any) -> None:
    def fail() -> None:
        with celery.transaction(tx):
            begin(tx)
            tx.commit()
            app.send_task("mail")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_nothing_listens_after_the_block(app: celery.Celery, tx: Any) -> None:
    with celery.transaction(tx):
        block = transactions._open.get()
        assert block is not None
    target = tx.registry() if isinstance(tx, scoped_session) else tx
    name = "after_commit" if isinstance(target, Session) else "commit"
    assert not event.contains(target, name, block.settled)


def test_a_connection_of_a_driver_is_taken_as_it_is(app: celery.Celery) -> None:
    tx = sqlite3.connect(app.late_app.url.removeprefix("sqlite:///"))
    with tx, celery.transaction(tx):
        app.send_task("mail")
    tx.close()
    assert drain(app.late_app) == {"done": 1}


def test_eager_mode_warns_of_a_call_that_would_raise_in_production(
    app: celery.Celery, tx: Any, recwarn: pytest.WarningsRecorder
) -> None:
    app.conf.task_always_eager = True
    mail = app.tasks["mail"]
    with celery.transaction(tx):
        mail.delay()
        celery.group(mail.s(), mail.s()).delay()
    assert not recwarn.list
    with pytest.warns(celery.OutsideTransaction, match="raises NoTransaction") as told:
        mail.delay()
    assert told[0].filename == __file__
    with pytest.warns(celery.OutsideTransaction):
        celery.group(mail.s(), mail.s()).delay()
    mail.apply()
    app.conf.late_outside_transaction = "open"
    mail.delay()
    assert not recwarn.list


def test_a_test_that_captures_tasks_needs_the_transaction_too(app: celery.Celery) -> None:
    tx = sqlite3.connect(app.late_app.url.removeprefix("sqlite:///"))
    with inline(app.late_app) as box:
        with tx, celery.transaction(tx):
            app.send_task("mail")
        assert box.run() == 1
        with pytest.raises(celery.NoTransaction):
            app.send_task("mail")
    tx.close()
