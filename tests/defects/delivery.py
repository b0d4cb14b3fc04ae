"""Defects of delivery: commands, receipts, effects, retention, results, histories."""

from __future__ import annotations

from typing import Any

import msgspec
from psycopg import AsyncConnection
from sqlalchemy import select

from late.api.access import peer_keys
from late.api.pull import receipts
from late.api.service import Service
from late.control import cleanup as sweep
from late.control.sql.rows import now_us
from late.dispatcher.pull.pool import PullPool
from late.dispatcher.pull.queue import identity
from late.dispatcher.push import responses
from late.outbox import inbox
from late.scheduler.core.commands import Commands
from late.schema.tables import inbox as inbox_table
from late.store.postgres import wake_ups
from late.store.sqlite import prune as sqlite_prune
from late.store.sqlite import statements as sqlite_sql
from tests.defects.components import replace


def command_before_its_task() -> None:
    """A command that comes before its task finds nothing and is done."""

    def change(self: Any, waiting: Any, target: Any) -> None:
        if target is None and not waiting.applied:
            self._done(waiting, "discarded")
        else:
            old(self, waiting, target)

    old = replace(Commands, "_change", change)


def cancelled_and_repeated() -> None:
    """A task that is cancelled while it runs has its retries all the same."""
    replace(Commands, "overruled", lambda self, entry, verdict: verdict)


def receipt_of_any_hand_out() -> None:
    """A receipt is good for whatever hand-out of its attempt is out."""

    def find(self: Any, serial: int, attempt_of: Any, *, until_us: int) -> Any:
        return next((h for h in self._out.values() if identity(h.attempt) == attempt_of), None)

    replace(PullPool, "find", find)


def receipt_without_its_seal() -> None:
    """What a receipt says is believed."""

    def unseal(keys: Any, text: str) -> receipts.Receipt:
        raw = receipts.base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.msgpack.decode(raw[receipts._MAC_BYTES :], type=receipts.Receipt)

    replace(receipts, "unseal", unseal)
    replace(peer_keys, "unseal", unseal)


def receipt_of_a_foreign_queue() -> None:
    """Whoever may consume may answer for any queue."""

    async def mine(self: Any, caller: Any, text: str) -> receipts.Receipt:
        return await self._keys.unseal(text)

    replace(Service, "_mine", mine)


def claim_without_a_fence() -> None:
    """A run whose shard has another owner by now still commits its effects."""
    text = inbox._CLAIM
    replace(inbox, "_CLAIM", text.replace("epoch > {epoch}", "epoch > {epoch} and 1 = 0"))


def effects_forgotten() -> None:
    """The inbox is swept by age alone."""

    def forgettable(connection: Any, keep_us: int) -> list[tuple[str, str]]:
        old = inbox_table.c.done_at_us < now_us(connection) - keep_us
        query = select(inbox_table.c.consumer_group, inbox_table.c.task_id).where(old)
        return [(group, str(task_id)) for group, task_id in connection.execute(query)]

    replace(sweep, "_forgettable", forgettable)


def retention_ignored() -> None:
    """Maintenance does not ask how long the log is to be kept."""
    replace(sqlite_prune, "RETENTION", "select null where 1 = 0")


def unasked_results() -> None:
    """What a target answers is kept, whether the task asks for it or not."""
    replace(responses, "as_recorded", lambda verdict, attempt: verdict)


def steps_begin_anew() -> None:
    """The steps of a history are numbered from one in each settlement."""
    text = sqlite_sql.HISTORY
    replace(sqlite_sql, "HISTORY", text.replace("insert into", "insert or replace into"))
    replace(sqlite_sql, "LAST_STEPS", sqlite_sql.LAST_STEPS.replace("where", "where 1 = 0 and"))


def notice_with_an_answer() -> None:
    """A notice of a commit that comes while a statement runs is dropped by the driver."""
    replace(AsyncConnection, "add_notify_handler", lambda self, callback: None)


def announced_for_ever() -> None:
    """An announcement of a time far ahead is left alone: it seems to be renewed."""
    ahead = f"not between t + {wake_ups.ANNOUNCED_S} - 1 and t + {wake_ups.ANNOUNCED_S}"
    assert ahead in wake_ups.ANNOUNCE
    late = f"< t + {wake_ups.ANNOUNCED_S} - 1"
    wake_ups.ANNOUNCE = wake_ups.ANNOUNCE.replace(ahead, late)
