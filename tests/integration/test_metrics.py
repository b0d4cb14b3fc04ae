"""A worker's `/metrics`: what it says is what has happened, and what is in the database."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import late
from late.api.server import Server
from late.api.settings import ServeSettings
from late.cli.metrics import Page
from late.config import WorkerConfig
from late.control import Control
from late.control.status.queries import StatusControl
from late.errors import ConfigError
from late.events import PAGE_READ, default
from late.observability.alerts import dashboard
from late.observability.metrics.http_server import MetricsServer
from late.outbox import connect
from late.schema.tables import timer
from late.store import open_store
from late.testing import drain
from late.worker.worker import Worker
from tests.conformance.kit import own, parked
from tests.integration.control_kit import rekey
from tests.support import sqlite
from tests.unit.api_kit import Client
from tests.unit.cli_kit import Cli, cli
from tests.unit.test_alerts import NAME

__all__ = ["cli"]

QUICK = WorkerConfig(
    poll_max_s=0.05, lease_ttl_s=30.0, grace_s=5.0, health_port=0, look_every_s=0.1
)


class Metrics:
    """What one scrape has found."""

    def __init__(self, text: str) -> None:
        self.samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def sum(self, name: str, **labels: str) -> float | None:
        found = [
            s.value for s in self.samples
            if s.name == name and labels.items() <= s.labels.items()
        ]  # fmt: skip
        return sum(found) if found else None

    def count(self, name: str) -> int:
        return sum(sample.name == name for sample in self.samples)

    def has(self, name: str) -> bool:
        return any(sample.name == name for sample in self.samples)


def get(port: int, path: str = "/metrics") -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=120) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, "", error.read().decode()


async def scrape(worker: Worker) -> Metrics:
    assert worker.health is not None
    status, kind, text = await asyncio.to_thread(get, worker.health.port)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return Metrics(text)


async def until(worker: Worker, condition: Callable[[Metrics], Any]) -> Metrics:
    async with asyncio.timeout(120):
        while True:
            found = await scrape(worker)
            if condition(found):
                return found
            await asyncio.sleep(0.05)


@pytest.fixture
def database(tmp_path: Path) -> str:
    """One file, where the kind of database does not matter."""
    return sqlite.database(tmp_path / "shop.db")


def made(url: str) -> late.App:
    app = late.App(url, shards=4)

    @app.task(queue="payments")
    async def charge(n: int) -> None:
        await asyncio.sleep(0)

    @app.task(retry=late.Retry(max_attempts=2, base=0.01, cap=0.01))
    async def fails() -> None:
        raise ValueError

    with connect(url) as tx:
        app.enqueue_many(tx, [charge.call(n) for n in range(40)])
        fails.enqueue(tx)
        charge.options(delay=3_600).enqueue(tx, 1)
    return app


async def test_what_a_worker_says_is_what_has_happened(url: str) -> None:
    worker = Worker(made(url), settings=QUICK)
    await worker.start()
    try:
        found = await until(
            worker,
            lambda m: (
                m.sum("late_outcomes_total", outcome="dead") == 1
                and m.sum("late_outcomes_total", outcome="done") == 40
                and m.sum("late_queue_dead") == 1
                and m.sum("late_queue_parked", queue="payments") == 1
                and m.sum("late_freshness_seconds") == 0
                and m.sum("late_shards_unowned") == 0
                and m.count("late_tail_lag_seconds") == len(worker.scheduler.cores)
                # The first one may be over before anybody counts.
                and m.has("late_heartbeat_seconds_count")
            ),
        )
        assert found.sum("late_enqueued_total", task="charge") == 41
        assert found.sum("late_outcomes_total", task="fails", outcome="retried") == 1
        assert found.sum("late_retries_total", task="fails") == 1
        assert found.sum("late_run_seconds_count", queue="payments") == 40
        assert found.sum("late_dead_letters_total", reason="attempts_exhausted") == 1
        assert found.sum("late_settle_tasks_sum") == 42, "each outcome is in one settlement"
        # A store may show a record again.
        assert (found.sum("late_read_records_sum") or 0) >= 42
        assert (found.sum("late_read_bytes_total") or 0) >= 40 * len('{"n":0}')
        assert found.sum("late_queue_depth", queue="payments") == 0
        assert found.sum("late_workers") == 1
        assert found.sum("late_slots") == worker.settings.concurrency
        assert found.sum("late_worker_trusted") == 1
        assert found.sum("late_shard_unsettled") == 0
        empty = [
            panel.title
            for row in dashboard.ROWS
            if row.title != dashboard.SERVER or found.has("late_database_rows_total")
            for panel in row.panels
            if not all(found.has(name) for expr, _ in panel.queries for name in NAME.findall(expr))
        ]
        if url.startswith("spanner"):
            # Its store counts calls, and not statements; those of others in this process count.
            assert found.has("late_rpc_total")
            empty = [title for title in empty if title != "Statements"]
        assert empty == [], "no panel of the dashboard is empty"
    finally:
        await worker.stop()


async def test_a_scrape_is_answered_while_the_loop_stands_still(database: str) -> None:
    worker = Worker(made(database), settings=QUICK)
    await worker.start()
    try:
        assert worker.health is not None
        await until(worker, lambda m: m.sum("late_outcomes_total", outcome="done") == 40)
        answers: list[tuple[int, str, str]] = []
        port = worker.health.port
        asks = threading.Thread(target=lambda: answers.append(get(port)), daemon=True)
        asks.start()
        asks.join(120)  # and this loop does nothing else meanwhile
        [(status, _, text)] = answers
        assert status == 200
        assert Metrics(text).sum("late_outcomes_total", outcome="done") == 40
    finally:
        await worker.stop()


async def test_a_look_that_fails_costs_the_database_metrics_and_no_task(
    database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: StatusControl, *, limit: int) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(StatusControl, "detailed", broken)
    worker = Worker(made(database), settings=QUICK)
    await worker.start()
    try:
        await until(worker, lambda m: m.sum("late_outcomes_total", outcome="done") == 40)
        await until(worker, lambda m: "not today" in caplog.text)
        assert (await scrape(worker)).sum("late_queue_depth") is None
        assert not worker._exit_code
    finally:
        await worker.stop()


async def test_nobody_counts_where_nobody_can_ask(database: str) -> None:
    worker = Worker(made(database), settings=WorkerConfig(poll_max_s=0.05))
    await worker.start()
    try:
        async with asyncio.timeout(120):
            while True:
                if worker.dispatcher.ended >= 41:
                    break
                await asyncio.sleep(0.02)
        assert b"late_outcomes_total" not in await worker.telemetry.page()
        assert not default.wants(PAGE_READ)
    finally:
        await worker.stop()


def stale_s(url: str) -> float:
    with Control(url) as control:
        [group] = control.status.read().groups
    assert group.stale_s is not None
    return group.stale_s


def test_freshness_follows_the_work(database: str) -> None:
    app = late.App(database, shards=4)

    @app.task
    def note() -> None: ...

    assert stale_s(database) == 0, "an empty log is done"
    with connect(database) as tx:
        note.enqueue(tx)
    assert stale_s(database) > 0, "committed, and not done"
    assert drain(app) == {"done": 1}
    assert stale_s(database) == 0


async def test_freshness_is_of_what_is_due_and_not_of_what_was_put_off(url: str) -> None:
    store = open_store(url)
    await store.open()
    owner = await own(store, 0)
    now_us = await store.now()
    await owner.settle(parked=(parked(now_us + 3_600_000_000),))
    await store.close()
    assert stale_s(url) == 0, "put off: it is not due"
    rekey(url, timer, lambda row: {"due_at_us": now_us - 60_000_000})
    assert stale_s(url) >= 60, "it was due, and is not done"


def test_the_database_alone_tells_of_a_backlog_that_nobody_works_on(database: str) -> None:
    made(database)
    with Control(database) as control:
        server = MetricsServer("127.0.0.1", 0, Page(control, slots=16, drain_s=60.0))
        try:
            status, _, text = get(server.port)
            found = Metrics(text)
            assert status == 200
            assert found.sum("late_queue_depth", queue="payments") == 41
            assert found.sum("late_workers") == 0
            assert found.sum("late_workers_wanted") == 1
            assert found.sum("late_drain_seconds") == float("inf")
            assert (found.sum("late_freshness_seconds") or 0.0) > 0
            assert get(server.port, "/livez")[0] == 200
            assert get(server.port, "/else")[0] == 404
        finally:
            server.stop()


def test_a_port_that_is_taken_is_said() -> None:
    server = MetricsServer("127.0.0.1", 0, lambda: b"")
    try:
        with pytest.raises(ConfigError, match=f"127.0.0.1:{server.port}"):
            MetricsServer("127.0.0.1", server.port, lambda: b"")
    finally:
        server.stop()


async def test_serve_tells_who_may_operate_everything(database: str) -> None:
    url = database
    tokens: dict[str, str | None] = {}
    with Control(url) as control:
        for name, scope, queues in (
            ("producer", "enqueue", ["*"]),
            ("some", "operate", ["pay*"]),
            ("all", "operate", ["*"]),
        ):  # fmt: skip
            tokens[name], _ = control.tokens.create(name, scopes=[scope], queues=queues)
    server = Server(late.App(url), ServeSettings(http_port=0, auth=True), settings=QUICK)
    await server.start()
    try:
        assert server.http is not None
        port = server.http.port
        assert (await Client(port)("GET", "/metrics")).status == 401
        assert (await Client(port, tokens["producer"])("GET", "/metrics")).status == 403
        assert (await Client(port, tokens["some"])("GET", "/metrics")).status == 403
        answer = await Client(port, tokens["all"])("GET", "/metrics")
        assert answer.status == 200
        assert Metrics(answer.body.decode()).sum("late_slots") == QUICK.concurrency
    finally:
        await server.stop()


def test_the_command_prints_the_page(cli: Cli) -> None:
    made(cli.url)
    found = Metrics(cli.fine("metrics").out)
    assert found.sum("late_queue_depth", queue="payments") == 41
    assert "late migrate" in cli.refused("metrics", "sqlite:///none.db", code=1)
