"""What the handler of a simulated task does: its payload."""

from __future__ import annotations

import msgspec


class Job(msgspec.Struct, omit_defaults=True):
    """Decoded by `handlers.Slots`. Counts are over all processes, in one consumer group."""

    takes_s: float = 0.01
    fails: int = 0
    """How many attempts fail."""
    kills: int = 0
    """How many starts take the process down."""
    hangs: int = 0
    """How many attempts never end by themselves."""
    snoozes: int = 0
    """How many times it asks to come again later."""
    follows: bool = False
    """Whether it commits a task of its own, in a transaction through the network."""
    shares: bool = False
    """Whether its transaction is that of its settlement, and of other tasks."""


_decoder = msgspec.json.Decoder(Job)


def job_of(payload: bytes) -> Job:
    return _decoder.decode(payload)
