"""Second rows of one task: whoever can write the log can copy a row, seal and all.

A seal binds a payload to its task, so a copy of the whole row is sealed as well as the first. What
tells them apart is the position: no two rows of the log have the same. Rows are recognised as long
as their task is in memory; sealed ones also after that, until so many others of the shard were read
that they are forgotten, or the shard has another owner.
"""

from __future__ import annotations

from collections import OrderedDict

from late.model.task import Options, Record, TaskId

SEALED_MAX = 10_000
"""Sealed tasks of one shard that are remembered: about 2 MB."""
_UNSEALED = (None, "json", "msgpack")


class Replays:
    """Remembers sealed tasks, and collects the second rows that were refused."""

    def __init__(self) -> None:
        self._positions: OrderedDict[TaskId, int] = OrderedDict()
        self.refused: list[TaskId] = []

    def is_second(self, record: Record, options: Options) -> bool:
        """Remember the task of a row that was read; return whether another row was first."""
        if options.codec in _UNSEALED:
            return False
        first = self._positions.setdefault(record.task_id, record.position)
        if len(self._positions) > SEALED_MAX:
            self._positions.popitem(last=False)
        if first == record.position:
            return False
        self.refused.append(record.task_id)
        return True

    def take(self) -> list[TaskId]:
        """Return the tasks of the refused rows since the last call."""
        taken, self.refused = self.refused, []
        return taken
