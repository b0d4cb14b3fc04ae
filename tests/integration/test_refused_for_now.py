"""A database that answers settlements with an error that may pass, such as a full disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import late
from late.config import WorkerConfig
from late.control import Control
from late.errors import StoreError, StoreUnavailable
from late.store.sqlite.errors import translate
from late.worker.worker import Worker
from tests.integration.shared_kit import until
from tests.support import sqlite

TASKS = 30
STALL_S = 1.0


def full() -> StoreError:
    import sqlite3

    cause = sqlite3.OperationalError("database or disk is full")
    cause.sqlite_errorcode, cause.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
    return translate(cause)


@pytest.mark.parametrize("answers", [True, False])
async def test_a_worker_keeps_what_it_has_run_while_its_database_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    app, ran = late.App(sqlite.database(tmp_path / "x.db")), list[int]()

    @app.task
    def note(n: int) -> None:
        ran.append(n)

    worker = Worker(app, settings=WorkerConfig(stall_s=STALL_S))
    settle: Any = worker._store.settle
    is_full = True

    async def refuses(settlements: Any) -> Any:
        if is_full:
            raise full() if answers else StoreUnavailable("no answer")
        return await settle(settlements)

    monkeypatch.setattr(worker._store, "settle", refuses)
    await worker.start()
    with late.outbox.connect(app.url) as tx:
        app.enqueue_many(tx, [note.call(n) for n in range(TASKS)])
    await until(lambda: worker.scheduler.unrecorded == TASKS)
    if not answers:  # It cannot be told from a defect of this worker.
        await until(lambda: "settle" in worker.stall_monitor.stalled)
        assert not worker._state().live
    else:
        await until(lambda: "SQLITE_FULL" in worker.settler.refusal)
        await asyncio.sleep(4 * STALL_S)
        # A machine that is busy may keep the loop from answering for so long.
        assert worker.stall_monitor.stalled <= {"answer"}
        with Control(app.url) as control:
            await until(lambda: any(r.report.settling_error for r in _reports(control)), 60)
    is_full = False
    if answers:
        await until(lambda: worker.scheduler.unrecorded == 0)
        assert worker.settler.refusal == ""
        assert sorted(ran) == list(range(TASKS)), "each once"
    await worker.stop()


def _reports(control: Control) -> Any:
    reports, _ = control.reports.all_and_deaths()
    return reports
