"""Attempts that go to another worker, because the owner of their shard cannot run them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from late.model.task import Attempt, Counts, Kind, Outcome, Policy, ShardId, TaskId

ELSEWHERE = "elsewhere"
"""The pool of attempts without a handler here."""


class OfferKey(NamedTuple):
    """A task of a shard: at most one attempt of it is offered at a time."""

    group: str
    shard_id: ShardId
    task_id: TaskId


class Offered(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of an attempt that a worker needs to run it, beside the task's own record."""

    queue: str
    name: str
    position: int
    number: int
    deaths: int
    due_at_us: int
    is_replay: bool = False
    timeout_us: int | None = None
    """The time that it may take, if a setting replaces the handler's time-out."""


class Offer(msgspec.Struct, frozen=True):
    """An attempt that its owner offers under `epoch`."""

    key: OfferKey
    owner: str
    epoch: int
    attempt: Offered


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The end of an attempt at the worker that ran it, and the rules for repeating its task."""

    kind: Kind
    policy: Policy
    target: str
    started_at_us: int
    busy_us: int
    error: str | None = None
    reason: str | None = None
    after_us: int | None = None
    retryable: bool = True
    overloaded: bool = False
    result: bytes | None = None
    counts: Counts = ()


class OfferState(msgspec.Struct, frozen=True):
    """An offer as the database has it."""

    key: OfferKey
    epoch: int
    refused_by: frozenset[str] = frozenset()
    runner: str | None = None
    """The worker that has taken it."""
    answer: Answer | None = None


def offered(attempt: Attempt) -> Offered:
    """Return the part of an attempt that goes into its offer."""
    record = attempt.record
    return Offered(
        record.queue,
        record.name,
        record.position,
        attempt.number,
        attempt.deaths,
        attempt.due_at_us,
        attempt.is_replay,
        attempt.timeout_us,
    )


def key_of(attempt: Attempt) -> OfferKey:
    """Return the key of the task of an attempt."""
    return OfferKey(attempt.group, ShardId(attempt.record.shard_id), attempt.record.task_id)


_SHARED = tuple(name for name in Answer.__struct_fields__ if name != "policy")
"""The names of the fields that an outcome and an answer share."""


def answer_of(outcome: Outcome, policy: Policy) -> Answer:
    """Return the answer of a worker whose policy for the task is `policy`."""
    return Answer(policy=policy, **{name: getattr(outcome, name) for name in _SHARED})


def outcome_of(attempt: Attempt, answer: Answer, jitter: float) -> Outcome:
    """Return the outcome of the owner's attempt."""
    shared = {name: getattr(answer, name) for name in _SHARED}
    return Outcome(attempt, jitter=jitter, **shared)
