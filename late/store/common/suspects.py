"""Marks in the journal that tell which task may have killed its worker.

In the common path nothing durable says what runs: that would be a write per task. So when a worker
dies, any task that it may have been running is as likely as another to have killed it. The next
owner of its shards therefore marks what it starts (`late/scheduler/core/crash_suspects.py`), in the
settlements that it writes anyway. If it dies as well, the marks name a handful of tasks.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from late.model.task import Suspect

_decode = msgspec.json.Decoder(tuple[Suspect, ...]).decode


def inherited(suspects: Iterable[Suspect], *, died: bool) -> tuple[Suspect, ...]:
    """What a takeover writes of the marks that it finds.

    A task that was running when its owner `died` has one death more. Otherwise all stays as it is:
    what an owner has not marked as ended may still be running, or bring it down. It may be dead
    already, too, for a takeover that it had sent can be carried out after its death: were the marks
    wiped by that, the death would count for nobody.
    """
    if not died:
        return tuple(suspects)
    counted = [Suspect(s.task_id, s.deaths + s.running) for s in suspects]
    return tuple(suspect for suspect in counted if suspect.deaths)


def suspects_text(suspects: tuple[Suspect, ...]) -> str | None:
    """As the journal keeps them: JSON, NULL when there are none, which is nearly always."""
    return msgspec.json.encode(suspects).decode() if suspects else None


def suspects_of(text: str | None) -> tuple[Suspect, ...]:
    """What `suspects_text` wrote."""
    return _decode(text) if text else ()
