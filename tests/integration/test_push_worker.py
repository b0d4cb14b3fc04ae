"""Tasks of another service from enqueue to settled, through a worker, on every store."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from sqlalchemy import select

import late
from late import events
from late.config import WorkerConfig
from late.control import Control, Filter
from late.errors import ConfigError
from late.model.task import Usage
from late.outbox import connect
from late.schema.engine import make_engine, reading
from late.schema.tables import settlement
from late.testing import drain
from late.worker.worker import Worker
from tests.node import NODE, needs_node

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HANDLER = Path(__file__).resolve().parents[2] / "examples" / "node" / "handler.mjs"


@contextmanager
def billing(app: late.App, port: int = 0) -> Iterator[int]:
    """The service that owns the tasks, in a thread with a loop of its own; gives its port."""
    ports: list[int] = []
    up, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with late.serve_handlers(app, f"127.0.0.1:{port}") as server:
            ports.append(server.port)
            up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert up.wait(120)
    try:
        yield ports[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()


def test_a_remote_task_is_enqueued_pushed_and_settled(url: str) -> None:
    service, seen = late.App("sqlite:///billing.db"), []

    @service.task
    async def charge(ctx: late.AsyncContext, trip_id: int, amount: Decimal) -> None:
        seen.append((str(ctx.task_id), ctx.attempt, trip_id, amount))
        if trip_id == 2 and ctx.attempt == 1:
            raise ConnectionError("the bank is away")
        if trip_id == 3:
            raise late.Discard("paid in cash")

    @service.task(retry=late.Retry(give_up_on=ValueError))
    def refund(trip_id: int) -> None:
        raise ValueError(f"no trip {trip_id}")

    with billing(service) as port:
        app = late.App(url, targets=[late.GrpcTarget("billing", [f"127.0.0.1:{port}"])])
        quick = late.Retry(max_attempts=3, base=0.05, cap=0.05)
        remote = app.remote("charge", target="billing", queue="payments", retry=quick)
        back = app.remote("refund", target="billing", queue="payments")
        ran = []

        @app.task
        async def at_home(n: int) -> None:
            ran.append(n)

        with connect(url) as tx:
            ids = [remote.enqueue(tx, trip_id=n, amount=Decimal("3.50")) for n in (1, 2, 3)]
            lost = back.enqueue(tx, trip_id=9)
            at_home.enqueue(tx, 1)
        assert drain(app, wait_s=5.0) == {"done": 3, "discarded": 1, "dead": 1}
    assert ran == [1]
    tries = [(str(ids[0]), 1, 1), (str(ids[1]), 1, 2), (str(ids[1]), 2, 2), (str(ids[2]), 1, 3)]
    assert sorted(each[1:3] for each in seen) == sorted(each[1:] for each in tries)
    assert {each[0] for each in seen} == {str(each) for each in ids}
    with Control(url) as control:
        [letter] = control.dead_letters.find(Filter())
        assert (letter.task_id, letter.reason) == (lost, "refused")
        assert "no trip 9" in letter.errors[-1].error


def test_a_queue_as_a_whole_is_given_to_a_target(url: str) -> None:
    """Whatever is in it: this app knows none of its tasks."""
    service, seen = late.App("sqlite:///billing.db"), []

    @service.task
    def charge(trip_id: int) -> None:
        seen.append(trip_id)

    with billing(service) as port:
        app = late.App(
            url, strict=False, targets=[late.GrpcTarget("billing", [f"127.0.0.1:{port}"])]
        )
        app.route("payments", target="billing")
        with connect(url) as tx:
            for n in range(20):
                app.send(tx, "charge", {"trip_id": n}, queue="payments")
        assert drain(app) == {"done": 20}
    assert sorted(seen) == list(range(20))


def test_a_result_that_a_target_gives_is_kept_where_it_is_wanted(url: str) -> None:
    """By task and by queue; a dead letter where it cannot be kept."""
    service = late.App("sqlite:///billing.db")

    @service.task
    async def price(km: int) -> dict[str, Decimal]:
        return {"total": Decimal(km) * 2}

    @service.task
    def scribble(size: int) -> str:
        return "x" * size

    with billing(service) as port:
        app = late.App(
            url, strict=False, targets=[late.GrpcTarget("billing", [f"127.0.0.1:{port}"])]
        )
        asked = app.remote("price", target="billing", result_ttl=60)
        app.route("drafts", target="billing", result_ttl=60)
        app.route("notes", target="billing")
        with connect(url) as tx:
            total = asked.enqueue(tx, km=7)
            text, large, unkept = (
                app.send(tx, "scribble", {"size": size}, queue=queue)
                for size, queue in ((3, "drafts"), (300_000, "drafts"), (300_000, "notes"))
            )
        assert drain(app) == {"done": 3, "dead": 1}
    assert app.handle(total).wait(timeout_s=0) == {"total": "14"}
    assert app.handle(text).wait(timeout_s=0) == "xxx"
    with pytest.raises(late.TaskEnded, match="dead"):
        app.handle(large).wait(timeout_s=0)
    with Control(url) as control:
        assert control.tasks.result(unkept, group="default") is None
        [letter] = control.dead_letters.find(Filter())
        assert letter.task_id == large
        assert "the limit is 262144" in letter.errors[-1].error


def test_an_outage_of_the_target_costs_nothing(url: str) -> None:
    """It is away, and comes: no dead letter, no restart."""
    service = late.App("sqlite:///billing.db")
    seen: Counter[int] = Counter()

    @service.task
    async def charge(trip_id: int) -> None:
        seen[trip_id] += 1

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    target = late.GrpcTarget("billing", [f"127.0.0.1:{port}"], connect_s=0.2, probe_s=0.2)
    app = late.App(url, shards=1, targets=[target])  # All begin together.
    # If the outage counted, all would be dead letters after eighteen calls, which are too few for
    # the breaker to notice.
    quick = late.Retry(max_attempts=3, base=0.05, cap=0.05)
    remote = app.remote("charge", target="billing", queue="payments", retry=quick)
    with connect(url) as tx:
        app.enqueue_many(tx, [remote.call(trip_id=n) for n in range(6)])
    failures: Counter[str] = Counter()

    def note(event: events.Event, values: Any) -> None:
        failures[values["name"]] += 1

    unsubscribe = events.default.subscribe(note, [events.ATTEMPT_FAILED])
    ended: list[dict[str, int]] = []
    worker = threading.Thread(target=lambda: ended.append(drain(app, timeout_s=60, wait_s=30)))
    try:
        worker.start()
        deadline = time.monotonic() + 120
        while failures["charge"] < 12:
            assert time.monotonic() < deadline, "nothing was tried"
            time.sleep(0.01)
        time.sleep(1.0)  # Time for the rest of the eighteen.
        with billing(service, port):
            worker.join()
    finally:
        unsubscribe()
    assert ended == [{"done": 6}]
    assert sorted(seen) == list(range(6))
    with Control(url) as control:
        assert control.dead_letters.find(Filter()) == []


def test_what_a_target_was_at_is_in_the_ledger(url: str) -> None:
    service = late.App("sqlite:///billing.db")

    @service.task
    def charge() -> None: ...

    with billing(service) as port:
        app = late.App(url, targets=[late.GrpcTarget("billing", [f"127.0.0.1:{port}"])])
        remote = app.remote("charge", target="billing")
        with connect(url) as tx:
            remote.enqueue(tx)
        assert drain(app) == {"done": 1}
    [usage] = [each for each in _usages(url) if each.attempts]
    assert (usage.name, usage.target, usage.outcome) == ("charge", "billing", "done")


async def test_a_target_that_nobody_configured_stops_the_start(url: str) -> None:
    app = late.App(url)
    app.remote("charge", target="billing")
    with pytest.raises(ConfigError, match=r"'charge'.*'billing'.*LATE_TARGETS"):
        Worker(app)


async def test_a_secret_that_is_not_there_stops_the_start(url: str) -> None:
    target = late.HttpTarget("mail", "https://mail.internal/", secret="env:NO_SUCH_SECRET")
    app = late.App(url, targets=[target])
    app.remote("welcome", target="mail")
    with pytest.raises(ConfigError, match="NO_SUCH_SECRET"):
        await Worker(app, settings=WorkerConfig()).start()


@needs_node
def test_a_handler_in_node_executes_tasks(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configured by the file of targets, as an operator would."""
    environment = os.environ | {"LATE_SECRET": SECRET, "PORT": "0"}
    with subprocess.Popen(
        [str(NODE), str(HANDLER)], env=environment, stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        try:
            port = json.loads(node.stdout.readline())["port"]
            path = tmp_path / "targets.toml"
            path.write_text(
                f"[node]\nkind = 'http'\nurl = 'http://127.0.0.1:{port}/'\nsecret = 'env:MINE'\n"
            )
            monkeypatch.setenv("LATE_TARGETS", str(path))
            monkeypatch.setenv("MINE", SECRET)
            app = late.App(url)
            quick = late.Retry(max_attempts=2, base=0.05, cap=0.05)
            greet = app.remote("greet", target="node")
            flaky = app.remote("flaky", target="node")
            broken = app.remote("broken", target="node", retry=quick)
            with connect(url) as tx:
                # Most of it goes well: else it would be the target that fails and not the tasks.
                greeted, *_ = [greet.enqueue(tx, name="Ada") for _ in range(12)]
                again = flaky.enqueue(tx, until_attempt=3)
                broken.enqueue(tx)
            assert drain(app, wait_s=10.0) == {"done": 13, "dead": 1}
        finally:
            node.terminate()
        said: list[dict[str, Any]] = [json.loads(line) for line in node.stdout]
    assert {"greeted": "Ada", "attempt": 1, "key": f"default:{greeted}"} in said
    assert {"flaky": "done", "attempt": 3, "key": f"default:{again}"} in said
    with Control(url) as control:
        [letter] = control.dead_letters.find(Filter())
        assert "HTTP 500: this one always fails" in letter.errors[-1].error


@needs_node
def test_the_handler_in_node_says_that_its_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [str(NODE), str(HANDLER)],
            env={"PATH": os.environ["PATH"], "LATE_SECRET": SECRET, "PORT": port},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"cannot listen on port {port}: ")
    assert ended.stderr.count("\n") == 1


@needs_node
def test_the_handler_in_node_refuses_what_is_not_signed() -> None:
    import httpx

    environment = os.environ | {"LATE_SECRET": SECRET, "PORT": "0"}
    with subprocess.Popen(
        [str(NODE), str(HANDLER)], env=environment, stdout=subprocess.PIPE, text=True
    ) as node:
        assert node.stdout is not None
        try:
            url = f"http://127.0.0.1:{json.loads(node.stdout.readline())['port']}/"
            headers = {"webhook-id": "1", "webhook-timestamp": "1", "webhook-signature": "v1,x"}
            body = '{"type": "greet", "data": {"name": "Eve"}, "task": {}}'
            with httpx.Client(trust_env=False) as client:
                assert client.post(url, content=body).status_code == 401
                assert client.post(url, content=body, headers=headers).status_code == 401
                assert client.get(url).status_code == 405
        finally:
            node.terminate()
        assert node.stdout.read() == ""


async def test_a_service_that_runs_by_itself_stops_at_sigterm() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
    code = f"import late; late.serve_handlers(late.App('sqlite:///x.db'), '{where}').run()"
    with subprocess.Popen([sys.executable, "-c", code]) as process:  # noqa: ASYNC220
        async with grpc.aio.insecure_channel(where) as channel:
            await asyncio.wait_for(channel.channel_ready(), 120)
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0


def _usages(url: str) -> list[Usage]:
    engine = make_engine(url)
    with reading(engine) as connection:
        texts = connection.execute(
            select(settlement.c.usage).where(settlement.c.usage.is_not(None))
        ).scalars()
        found = [each for text in texts for each in msgspec.json.decode(text, type=list[Usage])]
    engine.dispose()
    return found
