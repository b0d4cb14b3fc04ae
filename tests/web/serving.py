"""`late serve --roles web` in a thread of this process, so that a test may block on its browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import late
from late.api.identity.settings import IdentitySettings
from late.api.server import Server
from late.api.settings import ServeSettings
from late.web.routes import OperatorPage

T = TypeVar("T")
PATIENCE_S = 120.0


class Served:
    """The page on a free port, or on the given one; it looks every `every_s`, which nobody waits
    for, or as it does otherwise."""

    def __init__(
        self,
        url: str,
        *,
        changes: bool = True,
        auth: bool = False,
        port: int = 0,
        every_s: float | None = 0.2,
        reports: str | None = None,
        identity: IdentitySettings | None = None,
        roles: tuple[str, ...] = ("web",),
    ) -> None:
        self._every_s = every_s
        listen = ServeSettings(
            http_port=port,
            roles=roles,
            web_changes=changes,
            auth=auth,
            reports=reports,
            identity=identity or IdentitySettings(),
        )
        self._server = Server(late.App(url), listen)
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        if self._error is not None:
            raise self._error
        assert self._server.http is not None
        self.port = self._server.http.port
        self.root = f"http://127.0.0.1:{self.port}/ui/"

    @property
    def site(self) -> OperatorPage:
        assert self._server.page is not None
        return self._server.page

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # told to the test, which waits for it
            self._error = error
            self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        await self._server.start()
        if self._every_s is not None:
            self.site._context.snapshots._every_s = self.site._streams._every_s = self._every_s
        self._ready.set()
        try:
            await self._asked.wait()
        finally:
            await self._server.stop()

    def ask(self, call: Callable[[], T]) -> T:
        """The value of a call on the server's own loop."""

        async def there() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(PATIENCE_S)

    def stop(self) -> None:
        """End it; twice is fine."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._asked.set)
            self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()
