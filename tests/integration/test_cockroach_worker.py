"""Workers and the control plane on the CockroachDB store, on the PostgreSQL that stands in for it.
See `cockroach_kit` for what that shows and what it does not."""

from __future__ import annotations

import late
from late import events
from late.control import Control
from late.model.task import Cursor, ShardId
from late.outbox import connect
from late.schema.engine import make_engine, reading
from late.store.cockroach.store import CockroachStore
from late.worker.worker import Worker
from tests.integration.cockroach_kit import backend, url  # noqa: F401 - fixtures
from tests.integration.test_worker import *  # noqa: F403
from tests.integration.test_worker import QUICK, until


async def test_what_is_settled_is_gone_from_the_log(url: str) -> None:  # noqa: F811
    app, ran = late.App(url), []
    said: list[str] = []

    @app.task
    async def note(n: int) -> None:
        ran.append(n)

    with connect(url) as tx:
        app.enqueue_many(tx, [note.call(n) for n in range(50)])
    end = events.default.subscribe(lambda event, _: said.append(event.name))
    worker = Worker(app, settings=QUICK)
    try:
        await worker.start()
        await until(lambda: len(ran) == 50)
        await worker.stop()
    finally:
        end()

    assert sorted(ran) == list(range(50))
    assert events.STORE_EXPERIMENTAL.name in said
    store = CockroachStore(url)
    await store.open()
    pages = await store.read({ShardId(n): Cursor("") for n in range(8)}, 100)
    await store.close()
    assert [page for page in pages if page.records] == []


def test_a_look_at_the_database_is_one_snapshot(url: str) -> None:  # noqa: F811
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            found = connection.exec_driver_sql("show transaction_isolation").scalar_one()
    finally:
        engine.dispose()
    assert found == "serializable"


def test_doctor_says_that_it_is_experimental(url: str) -> None:  # noqa: F811
    with Control(url) as control:
        found = {check.name: check for check in control.doctor()}

    assert found["server"].result == "warning"
    assert "experimental" in found["server"].detail
    assert [name for name, check in found.items() if check.result == "failed"] == []
