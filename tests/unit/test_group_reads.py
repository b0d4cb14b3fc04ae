"""What a row of a consumer group says of the tasks that the group reads."""

from __future__ import annotations

from late.model.task import CONTROL_QUEUE, Reads
from late.store.common.groups import PAUSED, SHADOW, active_of, reads_of


def test_a_group_without_limits_reads_everything() -> None:
    assert reads_of(None, None, None) == Reads(None, 0, 0)


def test_a_group_with_queues_reads_commands_too() -> None:
    assert reads_of(None, None, None, SHADOW | PAUSED) == Reads(shadow=True)
    assert reads_of(None, None, None, PAUSED) == Reads()
    assert reads_of('["mail"]', 5, 7) == Reads(frozenset(["mail", CONTROL_QUEUE]), 5, 7)


def test_shadows_are_told_apart_by_their_mark() -> None:
    assert active_of(["default", "~try"]) == ({"default", "try"}, {"try"})
