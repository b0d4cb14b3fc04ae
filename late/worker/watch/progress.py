"""The progress of a worker with what it owes: pure, fed by a thread that looks regularly.

A **duty** is work that must make progress while there is any of it to do:

| duty | owed while | done |
|---|---|---|
| `answer` | always | the event loop has run a callback |
| `start` | a task could start now and nothing runs within its time-out | an attempt has started or ended |
| `slots` | handlers that run on after their time-out hold every slot | one of them has ended |
| `settle` | outcomes wait to be recorded | a settlement is in the journal |
| `read` | a shard wants to be read, or what it has open to be fetched | one of them has been answered |

A worker **stalls** when one duty has been owed for `stall_s` on end and nothing of it was done. A
task that waits for its time, for its ordering key, or for a long task that is within its time-out is
not owed. While the worker is not trusted, only an answer is owed: it may not start tasks then, and
a database that cannot be reached is no stall of the worker. Nor is one that answers settlements with
an error that may pass, such as a full disk: a worker that were ended for that, or gave its shards up,
would only repeat what it has run.

The stall ends when the duty is seen to be done again; or, when it is no longer owed because the
shards have gone to peers, after another `stall_s`: what was wrong may be wrong everywhere (a table
that someone has locked), and then a fleet that never tries again would be worse.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SLOTS = "slots"


class Duty(msgspec.Struct, frozen=True):
    """One duty at one moment."""

    name: str
    owed: bool
    done: int
    """A counter that only grows."""


class _Since:
    """One duty over time."""

    def __init__(self) -> None:
        self.done = -1
        self.owed_s = 0.0
        """The seconds it has been owed, without a break and without progress."""
        self.free_s = 0.0
        """The seconds it has not been owed."""


class Watchdog:
    """Adds up, from look to look, the time that each duty has not been done."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._since: dict[str, _Since] = {}
        self.stalled: frozenset[str] = frozenset()
        """The duties without progress; empty for a healthy worker."""

    def look(self, elapsed_s: float, duties: Sequence[Duty], *, paused: bool = False) -> bool:
        """Note the state of the duties, `elapsed_s` after the last look; True if `stalled` changed.

        Args:
            elapsed_s: the seconds the caller has been awake. A pause of the whole process is no
                stall and must be left out.
            paused: only an answer is owed.
        """
        before, stalled = self.stalled, set(self.stalled)
        for duty in duties:
            since = self._since.setdefault(duty.name, _Since())
            owed = duty.owed and not (paused and duty.name != "answer")
            progress, since.done = duty.done != since.done, duty.done
            if owed and not progress:
                since.owed_s, since.free_s = since.owed_s + elapsed_s, 0.0
                if since.owed_s >= self._stall_s:
                    stalled.add(duty.name)
                continue
            since.owed_s = 0.0
            since.free_s += elapsed_s
            if progress or since.free_s >= self._stall_s:
                stalled.discard(duty.name)
        self.stalled = frozenset(stalled)
        return self.stalled != before
