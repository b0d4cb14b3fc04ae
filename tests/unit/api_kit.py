"""The HTTP API in front of a queue that is fed by hand, and a client for it."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import late
from late.api.access.auth import Access
from late.api.access.peer_keys import Keyring
from late.api.grpc.server import RpcServer
from late.api.http import routes as interface
from late.api.http.operators import OperatorRoutes
from late.api.http.uvicorn_server import HttpServer
from late.api.identity.services import Services
from late.api.limits import Pace
from late.api.operator.operators import Operators
from late.api.producer import Producer
from late.api.pull.deliveries import Local
from late.api.service import Service
from late.control import Control
from late.model.targets import Target
from late.payload.codec import JSON
from late.schema import migrate
from tests.support import sqlite
from tests.unit.dispatcher_kit import NOW_US
from tests.unit.pull_kit import Pulled

KEY = b"k" * 32


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection per request; JSON unless `raw` is given."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self.token = token

    async def __call__(self, method: str, path: str, value: Any = None, **options: Any) -> Answer:
        return await asyncio.to_thread(self.now, method, path, value, **options)

    def now(
        self,
        method: str,
        path: str,
        value: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        sent = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        body = raw if value is None else json.dumps(value).encode()
        if body is not None:
            sent["Content-Type"] = "application/json"
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            link.request(method, path, body, {**sent, **(headers or {})})
            found = link.getresponse()
            lower = {key.lower(): text for key, text in found.getheaders()}
            return Answer(found.status, lower, found.read())
        finally:
            link.close()


@dataclass
class Served:
    app: late.App
    rig: Pulled
    service: Service
    call: Client
    url: str
    rpc: RpcServer

    def token(self, name: str, *scopes: str, queues: tuple[str, ...] = ("*",)) -> str:
        with Control(self.url) as control:
            text, _ = control.tokens.create(name, scopes=list(scopes), queues=list(queues))
        assert text is not None
        return text


@asynccontextmanager
async def served(
    folder: Path,
    *,
    auth: bool = False,
    app: late.App | None = None,
    pace: Pace | None = None,
    services: Services | None = None,
    now_us: Callable[[], int] = lambda: NOW_US,
    changes: bool = True,
    targets: Mapping[str, Target] | None = None,
    url: str | None = None,
    signed_urls: bool = False,
) -> AsyncIterator[Served]:
    """Everything but a worker: the queue `payments` is fed through `rig`."""
    if url is None:
        url = sqlite.database(folder / "served.db")
    else:
        migrate.upgrade(url)
    if app is None:
        app = late.App(url)
    rig = Pulled("payments")
    await rig.pool.start()
    pools = {"payments": rig.pool}
    keys = Keyring.of(KEY)
    source = Local(pools, worker="w-1", groups=["default"], codec=JSON, keys=keys, url="")
    control = Control(url)
    read = control.tokens.all if auth else None
    access = Access(read, now_us=now_us, pace=pace, services=services)
    producer = Producer(app, routed=pools)
    service = Service(
        producer, source, access, look=control.status.read, group="default", keys=keys
    )
    operators = Operators(control, access, group="default", targets=targets or {}, changes=changes)
    routes = interface.make(service, operators=OperatorRoutes(operators), signed_urls=signed_urls)
    server = HttpServer(routes, "127.0.0.1", 0)
    await server.start()
    rpc = RpcServer(service, "127.0.0.1", 0, operators=operators)
    await rpc.start()
    try:
        yield Served(app, rig, service, Client(server.port), url, rpc)
    finally:
        await rpc.stop()
        await server.stop()
        await rig.pool.stop(0)
        producer.close()
        control.close()
