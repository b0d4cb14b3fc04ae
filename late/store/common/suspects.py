"""Marks in the journal that tell which task may have killed its worker.

In the common path nothing durable says which tasks run: that would be a write per task. So when a
worker dies, each task that it may have been running is equally likely to have killed it. The next
owner of its shards therefore marks the tasks that it starts
(`late/scheduler/core/crash_suspects.py`), in the settlements that it writes anyway. If it dies as
well, the marks name only a few tasks.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from late.model.task import Suspect

_decode = msgspec.json.Decoder(tuple[Suspect, ...]).decode


def inherited(suspects: Iterable[Suspect], *, died: bool) -> tuple[Suspect, ...]:
    """Return the marks that a takeover writes, given those that it finds.

    A task that was running when its owner `died` has one more death. Otherwise all marks stay: a
    task that its owner has not marked as ended may still be running, and may still kill it. The
    owner may even be dead already, as a takeover that it had sent can be carried out after its
    death. If that removed the marks, the death would be counted for no task.
    """
    if not died:
        return tuple(suspects)
    counted = [Suspect(s.task_id, s.deaths + s.running) for s in suspects]
    return tuple(suspect for suspect in counted if suspect.deaths)


def suspects_text(suspects: tuple[Suspect, ...]) -> str | None:
    """Encode the marks for the journal: JSON, or NULL when there are none, which is usual."""
    return msgspec.json.encode(suspects).decode() if suspects else None


def suspects_of(text: str | None) -> tuple[Suspect, ...]:
    """Decode the text that `suspects_text` wrote."""
    return _decode(text) if text else ()
