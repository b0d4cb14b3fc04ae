"""DBOS: a workflow per task on a queue, put in with `DBOSClient`. Its tutorial on queues bounds
what one process runs with `worker_concurrency`; its reference says that a shorter polling interval
lowers the delay at the price of load. A client has no call for many workflows at once, so a bulk is
one transaction with a call for each.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import sqlalchemy
from common import NOTE, URL, Marks, main
from dbos import DBOS, DBOSClient

QUEUE = "bench"
AT_ONCE = 100
POLLING_S = 0.1
DRIVER_URL = URL.replace("postgresql://", "postgresql+psycopg://")
BUSINESS = sqlalchemy.text("insert into business values (:n, 'order')")

marks = Marks()


@DBOS.workflow(name="nothing")
def nothing(n: int, note: str) -> None:
    marks.nothing()


@DBOS.workflow(name="stamp")
def stamp(n: int, note: str) -> None:
    marks.stamp(n)


class Connected:
    def __init__(self) -> None:
        self._engine = sqlalchemy.create_engine(DRIVER_URL)
        self._client = DBOSClient(system_database_engine=self._engine, application_name="bench")

    def _put(self, connection: sqlalchemy.Connection, number: int, task: str) -> None:
        options: Any = {"queue_name": QUEUE, "workflow_name": task}
        self._client.enqueue_in_transaction(connection, options, number, NOTE)

    async def bulk(self, numbers: Sequence[int]) -> None:
        with self._engine.begin() as connection:
            for number in numbers:
                self._put(connection, number, "nothing")

    async def single(self, number: int, task: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(BUSINESS, {"n": number})
            self._put(connection, number, task)

    async def close(self) -> None:
        self._client.destroy()
        self._engine.dispose()


def launch() -> None:
    DBOS(config={"name": "bench", "system_database_url": URL, "log_level": "WARNING"})
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=AT_ONCE, polling_interval_sec=POLLING_S)


class Dbos:
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("dbos", "psycopg", "sqlalchemy")}

    async def prepare(self) -> None:
        # In a thread without a running event loop, where its calls may block.
        thread = threading.Thread(target=lambda: (launch(), DBOS.destroy()))
        thread.start()
        thread.join()

    async def client(self) -> Connected:
        return Connected()

    def work(self) -> None:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        launch()
        stop.wait()
        DBOS.destroy()


if __name__ == "__main__":
    main(Dbos())
