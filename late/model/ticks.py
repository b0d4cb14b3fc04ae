"""The task that a recurring schedule makes for one of its due times. Pure.

A tick has no choice: its id, its headers and its options follow from the schedule and the due time.
So whoever computes it makes the same task, and whoever reads it can check it
(`late/payload/terms.py`).
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

import msgspec

from late.model.task import NewTask, Options, Schedule, TaskId


def tick(schedule: Schedule, due_us: int, *, is_bound: bool) -> NewTask:
    """Return the task of the due time `due_us`.

    Args:
        is_bound: the schedule's payload is sealed for its due times. The task then says its own.
    """
    given = msgspec.json.decode(schedule.options, type=Options) if schedule.options else Options()
    options = msgspec.structs.replace(
        in_order(given, schedule.name, schedule.overlap),
        schedule=schedule.name,
        at_us=due_us if is_bound else given.at_us,
    )
    return NewTask(
        shard_id=schedule.shard_id,
        task_id=tick_id(schedule.name, schedule.shard_id, due_us),
        queue=schedule.queue,
        name=schedule.task_name,
        payload=schedule.payload,
        headers=msgspec.json.encode(tick_headers(schedule.name, due_us)).decode(),
        options=msgspec.json.encode(options).decode(),
    )


def in_order(options: Options, name: str, overlap: str) -> Options:
    """Return the options of all tasks of a schedule: `overlap="queue"` gives them a key."""
    if overlap != "queue":
        return options
    return msgspec.structs.replace(options, ordering_key=f"schedule:{name}"[:128])


def tick_headers(name: str, due_us: int) -> dict[str, str]:
    """Return the headers of a tick."""
    due_at = datetime.fromtimestamp(due_us // 1_000_000, UTC)
    return {"late-schedule": name, "late-due": due_at.isoformat()}


def fires_at_us(schedule: Schedule, due_us: int) -> int:
    """Return when the tick of the due time `due_us` is fired: up to the schedule's jitter later.

    How much follows from the name and the due time: it is the same for whoever computes it.
    """
    if not schedule.jitter_us:
        return due_us
    text = f"{schedule.name}|{due_us}|jitter".encode()
    part = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    return due_us + (part * (schedule.jitter_us + 1) >> 64)


def tick_id(name: str, shard_id: int, due_us: int) -> TaskId:
    """Return the UUIDv7 of a tick: the same tick has the same id, whoever computes it."""
    digest = hashlib.blake2b(f"{name}|{due_us}".encode(), digest_size=8).digest()
    high = f"{due_us // 1000:012x}"
    low = f"{int.from_bytes(digest, 'big') & (2**62 - 1) | 2**63:016x}"
    return TaskId(f"{high[:8]}-{high[8:]}-7{shard_id:03x}-{low[:4]}-{low[4:]}")
