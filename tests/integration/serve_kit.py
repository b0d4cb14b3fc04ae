"""`late serve` in this process, and what is asked of the database about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import late
from late import config
from late.api.server import Server
from late.api.settings import ROLES, ServeSettings
from late.control import Control
from late.control.workers import Endpoint
from late.schema.tables import SHARDS_DEFAULT
from late.tailer import placement
from tests.support.leases import LONG_LEASES
from tests.unit.api_kit import Client

PAYMENTS = "/v1/queues/payments"


class Serving:
    """A running server and a client of it."""

    def __init__(self, server: Server, url: str) -> None:
        assert server.http is not None
        assert server.grpc is not None
        self.server = server
        self.url = url
        self.owners: list[Server] = []
        self.call = Client(server.http.port)
        self.at = f"127.0.0.1:{server.grpc.port}"

    async def put(self, **fields: Any) -> str:
        answer = await self.call("POST", f"{PAYMENTS}/tasks", {"name": "charge", **fields})
        assert answer.status == 201, answer.body
        return str(answer.json["task_id"])

    async def receive(self, **fields: Any) -> list[dict[str, Any]]:
        answer = await self.call("POST", f"{PAYMENTS}/receive", {"wait_s": 20, **fields})
        assert answer.status == 200, answer.body
        return list(answer.json["tasks"])

    async def state(self, task_id: str) -> str:
        def look() -> str:
            with Control(self.url) as control:
                return control.tasks.show(task_id).groups[0].state

        return await asyncio.to_thread(look)

    async def is_settled(self, task_id: str) -> bool:
        """Of a task that was seen in the log: maintenance may already have removed it there,
        which it does to nothing that is not settled."""
        return await self.state(task_id) in ("settled", "unknown")


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """The database is the only one that can say so."""
    async with asyncio.timeout(120):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


def make(
    url: str,
    *,
    roles: tuple[str, ...] = ROLES,
    public: bool = True,
    auth: bool = False,
    **settings: Any,
) -> Server:
    app = late.App(url)
    app.route("payments", target="pull", retry=late.Retry(base=0.001, jitter="none"))
    listen = ServeSettings(
        http_port=0 if public else None, grpc_port=0 if public else None, roles=roles, auth=auth,
        api_changes=True,
    )  # fmt: skip
    return Server(app, listen, settings=config.load(**LONG_LEASES | settings))


@asynccontextmanager
async def serving(url: str, **settings: Any) -> AsyncIterator[Serving]:
    """One server with everything."""
    server = make(url, **settings)
    await server.start()
    try:
        yield Serving(server, url)
    finally:
        if not server.stopped:
            await server.stop()


@asynccontextmanager
async def fleet(url: str, *, auth: bool = False, **settings: Any) -> AsyncIterator[Serving]:
    """Two that own the shards and offer nothing, and one without shards that consumers ask."""
    owners = [make(url, roles=("tail",), public=False, **settings) for _ in range(2)]
    server = make(url, roles=("api",), auth=auth)
    async with AsyncExitStack() as started:  # also where one of them does not start
        for each in owners:
            await each.start()
            started.push_async_callback(halt, each)
        async with asyncio.timeout(120):
            while len(await asyncio.to_thread(endpoints, url)) < 2 or not placed(owners):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await server.start()
        started.push_async_callback(halt, server)
        it = Serving(server, url)
        it.owners = owners
        yield it


async def halt(server: Server) -> None:
    """Stop it, unless the test has."""
    if not server.stopped:
        await server.stop()


def placed(owners: Sequence[Server]) -> bool:
    """Whether each has the shards that are its own."""
    workers = [owner.worker for owner in owners if owner.worker is not None]
    weights = {worker.id: 1.0 for worker in workers}
    own: dict[str, set[tuple[str, int]]] = {worker.id: set() for worker in workers}
    owner_of = placement.place([f"default/{shard}" for shard in range(SHARDS_DEFAULT)], weights)
    for shard in range(SHARDS_DEFAULT):
        own[owner_of[f"default/{shard}"]].add(("default", shard))
    return all(worker.keeper.leases.keys() == own[worker.id] for worker in workers)


def endpoints(url: str) -> list[Endpoint]:
    with Control(url) as control:
        return control.endpoints.all()
