"""The same app in one process and in four: two that own the shards, one that runs the handlers, and
one that serves. What becomes of the tasks is the same."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest

import late
from late import config
from late.api.server import Server
from late.api.settings import ServeSettings
from late.control import Control
from late.errors import ConfigError
from tests.integration.serve_kit import endpoints, until
from tests.integration.test_serve_processes import ports, started
from tests.support import sqlite
from tests.support.leases import LONG_LEASES
from tests.unit.api_kit import Client

Layout = Callable[[str], AbstractAsyncContextManager[int]]
SHOP = """
import os
import late

app = late.App(os.environ["SHOP_URL"])
QUICK = late.Retry(max_attempts=3, base=0.001, jitter="none")


def note(ctx: late.Context, what: str, n: int) -> None:
    with ctx.once() as tx:
        tx.execute("insert into done values (?, ?, ?)", (what, n, ctx.attempt))


@app.task(queue="orders", codec="msgpack")
def plain(ctx: late.Context, n: int) -> None:
    note(ctx, "plain", n)


@app.task(queue="orders", retry=QUICK)
async def again(ctx: late.AsyncContext, n: int) -> None:
    if ctx.attempt == 1:
        raise ConnectionError
    async with ctx.once() as tx:
        await tx.execute("insert into done values ('again', ?, ?)", (n, ctx.attempt))


@app.task(queue="reports", process=True)
def child(ctx: late.Context, n: int) -> None:
    note(ctx, "child", n)


@app.task(queue="reports", retry=QUICK)
def dies(n: int) -> None:
    raise ValueError(f"no {n}")


@app.task(queue="reports", result_ttl=600)
def doubled(n: int) -> int:
    return 2 * n
"""
FOUR = ("api", "tail", "tail", "dispatch")
OPTIONS = [word for name, value in LONG_LEASES.items() for word in ("--set", f"{name}={value}")]


@asynccontextmanager
async def in_one(url: str) -> AsyncIterator[int]:
    """The port of a server that does everything."""
    app = importlib.import_module("shop_app").app
    listen = ServeSettings(http_port=0)
    server = Server(app, listen, target="shop_app:app", settings=config.load(**LONG_LEASES))
    await server.start()
    try:
        assert server.http is not None
        yield server.http.port
    finally:
        await server.stop()


@asynccontextmanager
async def in_four(url: str) -> AsyncIterator[int]:
    """The same of one that only serves; two others have the shards, and one runs the handlers."""
    async with AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(
                started("-m", "late.cli", "serve", "shop_app:app", "--roles", roles,
                        "--http-port", "0", "--grpc-port", "0", *OPTIONS)
            )
            for roles in FOUR
        ]  # fmt: skip
        found = await ports(processes[0])

        async def both_there() -> bool:
            return len(await asyncio.to_thread(endpoints, url)) == 2

        await until(both_there)
        yield found["http"]
        for process in reversed(processes):
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(120):
            assert {await process.wait() for process in processes} == {0}


@pytest.mark.parametrize("layout", [in_one, in_four], ids=["one", "four"])
async def test_an_app_in_one_process_and_in_four(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = sqlite.database(tmp_path / "shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as tx:
        tx.execute("create table done (what text, n int, attempt int)")
    (tmp_path / "shop_app.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shop_app", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.getcwd()]))
    monkeypatch.setenv("SHOP_URL", url)
    async with layout(url) as port:
        tasks = [
            {"name": name, "payload": {"n": n}}
            for name in ("plain", "again", "child", "dies", "doubled")
            for n in range(3)
        ]
        answer = await Client(port)("POST", "/v1/tasks", {"tasks": tasks})
        assert answer.status == 201, answer.body
        doubled = [task["task_id"] for task in answer.json["tasks"][-3:]]
        with Control(url) as control:
            token = answer.json["token"]
            waited = await asyncio.to_thread(control.groups.wait, "default", token, timeout_s=120)
            assert waited.state in ("settled", "gone")
            letters = control.dead_letters.find()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as tx:
        done = sorted(tx.execute("select what, n, attempt from done"))
    assert done == [
        *(("again", n, 2) for n in range(3)),
        *(("child", n, 1) for n in range(3)),
        *(("plain", n, 1) for n in range(3)),
    ]
    assert sorted(e.error.split(":")[1][:5] for letter in letters for e in letter.errors[-1:]) == [
        f" no {n}" for n in range(3)
    ]
    assert {(letter.attempts, letter.reason) for letter in letters} == {(3, "attempts_exhausted")}
    app = late.App(url)
    assert [await app.handle(task_id).result(timeout_s=60) for task_id in doubled] == [0, 2, 4]


def test_what_roles_need_is_said_at_once() -> None:
    app = late.App("sqlite:///shop.db")
    with pytest.raises(ConfigError, match="there are none"):
        ServeSettings(roles=("dispatch",)).check_app(app)

    @app.task(batch=10)
    def index(batch: late.Batch[int]) -> None: ...

    for roles in (("dispatch",), ("tail",), ("api", "tail")):
        with pytest.raises(ConfigError, match="'index' is one"):
            ServeSettings(roles=roles).check_app(app)
    ServeSettings(roles=("api",)).check_app(app)
    ServeSettings(roles=("tail", "dispatch")).check_app(app)
