"""The means of a scenario: its queue, the consumers that it starts, and its patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.consumers import program, proxy
from tests.consumers.program import Program
from tests.consumers.server import Server

LOOK_S = 0.05
VISIBILITY_S = 30.0
GRACE_S = 60.0


class Wrong(Exception):
    """The consumer did what it must not, or did not do what it must."""


@dataclass
class Stage:
    """The stage of one scenario.

    Args:
        command: the consumer's program and its arguments.
        limit_s: how long anything may take that the scenario waits for.
    """

    server: Server
    queue: str
    command: Sequence[str]
    limit_s: float

    async def put(self, name: str, **payload: object) -> str:
        return await self.server.put(self.queue, name, payload)

    @asynccontextmanager
    async def consumer(
        self, name: str, *, visibility_s: float = VISIBILITY_S, grace_s: float = GRACE_S
    ) -> AsyncIterator[Program]:
        """Start a consumer of this name, with a proxy of its own."""
        settings = {
            "LATE_TOKEN": self.server.token,
            "LATE_QUEUE": self.queue,
            "LATE_CONSUMER": name,
            "LATE_VISIBILITY_S": f"{visibility_s:g}",
            "LATE_GRACE_S": f"{grace_s:g}",
        }
        async with (
            proxy.between(self.server.address) as wire,
            program.started(self.command, wire, settings) as running,
        ):
            yield running

    async def until(
        self,
        what: str,
        holds: Callable[[], bool | Awaitable[bool]],
        *running: Program,
    ) -> None:
        """Wait until `holds` does, while these consumers run.

        Raises:
            Wrong: it takes too long, or one of them has ended.
        """
        try:
            async with asyncio.timeout(self.limit_s):
                while True:
                    found = holds()
                    if found if isinstance(found, bool) else await found:
                        return
                    for each in running:
                        if each.code is not None:
                            raise Wrong(
                                f"it ended with code {each.code} before {what}:\n{each.last_lines}"
                            )
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            lines = "\n".join(each.last_lines for each in running)
            raise Wrong(f"{self.limit_s:g} s went by before {what}\n{lines}".rstrip()) from None

    async def until_settled(self, tasks: Sequence[str], *running: Program) -> None:
        async def all_settled() -> bool:
            for task in tasks:
                if not await self.server.is_settled(task):
                    return False
            return True

        await self.until("every task was settled", all_settled, *running)

    async def until_began(self, task: str, running: Program) -> None:
        """Wait until the consumer has begun with the task."""
        what = f'it wrote {{"began": "{task}", ...}}'
        await self.until(what, lambda: bool(running.attempts(task)), running)

    async def stopped(self, running: Program) -> None:
        """Send SIGTERM, and wait for the end, which must be in order."""
        running.terminate()
        await self.until("it ended after SIGTERM", lambda: running.code is not None)
        await running.wait()
        demand(
            running.code == 0,
            f"after SIGTERM it ended with code {running.code}, not 0\n{running.last_lines}",
        )


def demand(holds: bool, wrong: str) -> None:
    """Raise `Wrong` unless it holds."""
    if not holds:
        raise Wrong(wrong)
