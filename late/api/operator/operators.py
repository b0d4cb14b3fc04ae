"""Run operations for callers: the same rules, audit, threads and waits for every interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from late.api.access.auth import Access
from late.api.limits import OPERATOR_CALLS
from late.api.operator.operation import Ask, Operation, Poll
from late.concurrency import in_thread
from late.control import Control, audit
from late.model import validation as validate
from late.model.access.rights import ANYBODY, Caller
from late.model.access.rules import Denied
from late.model.ids import shard_of
from late.model.targets import Target

READ_ONLY = "this API shows and does not change: late serve --api-changes"
PAUSE_S, PAUSE_MAX_S = 0.1, 1.0
"""Seconds between two looks of a request that waits."""


class Operators:
    """The operations of one process.

    Args:
        group: the group of a request that names none.
        targets: the targets that this process is configured with.
        changes: callers with the role may change things; otherwise nobody may.
    """

    def __init__(
        self,
        control: Control,
        access: Access,
        *,
        group: str,
        targets: Mapping[str, Target],
        changes: bool,
    ) -> None:
        self.access = access
        self._control = control
        self._group = group
        self._targets = targets
        self._changes = changes
        # Threads are for all that this process does: a crowd of operators must leave some over.
        self._slots = asyncio.Semaphore(OPERATOR_CALLS)

    def check(self, operation: Operation, caller: Caller, path: Mapping[str, str]) -> None:
        """Refuse a caller without the role, and what nothing can have as its name, before any SQL.

        Raises:
            Hidden, Denied: see `Rule.check`; nobody may change anything where `changes` is off.
            InvalidName, InvalidTask: a name or an id in the path is not valid.
        """
        operation.rule.check(caller, {"name": path.get("queue", "")})
        if operation.changes and not self._changes:
            raise Denied(READ_ONLY)
        for kind, text in path.items():
            shard_of(text) if kind == "task_id" else validate.name(text, kind)

    async def run(
        self, operation: Operation, caller: Caller, path: Mapping[str, str], value: Any
    ) -> Any:
        """Carry an operation out that `check` has admitted; its answer may be a `Poll`."""
        ask = Ask(self._control, caller, path, value, self._group, self._targets)
        # The interfaces have no page, so their audit does not name one.
        with audit.acting("anybody@api" if caller is ANYBODY else caller.actor):
            return await self._call(operation.run, ask)

    async def wait(self, caller: Caller, poll: Poll[Any]) -> Any:
        """Look again and again until it is over, or the time of the request is.

        Raises:
            Unauthenticated: the caller's token has ended meanwhile.
        """
        return await self.access.while_admitted(caller, partial(self._wait, poll))

    async def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        async with self._slots:
            return await in_thread(call, *args)

    async def _wait(self, poll: Poll[Any]) -> Any:
        ends, pause_s = asyncio.get_running_loop().time() + poll.wait_s, PAUSE_S
        while True:
            found = await self._call(poll.look)
            if poll.over(found) or asyncio.get_running_loop().time() + pause_s > ends:
                return found
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 1.5 * pause_s)
