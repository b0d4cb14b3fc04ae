"""Names of queues and tasks that nothing tells of: a name misspelt must not read as `none`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from late.errors import ConfigError
from late.model.task import DEFAULT_GROUP

if TYPE_CHECKING:
    from late.control import Control
    from late.control.task_list.model import State
    from late.model.task import Usage

LOOK = 1_000
"""Tasks of one group and shard that are looked at for the names of queues."""
_STATES: tuple[State, ...] = ("logged", "open", "parked", "dead")
_DAY_US = 86_400_000_000


def require(
    control: Control, *, queue: str | None, name: str | None, group: str | None = None
) -> None:
    """Refuse a queue or a task's name that nothing tells of, as far as one look.

    Raises:
        ConfigError: no task, knob, schedule, handler or journal of the last day has it.
    """
    if queue is not None and not is_queue(control, queue):
        raise ConfigError(
            f"no queue {queue[:128]!r}: it has no task, no knob and no schedule, and none of its "
            "tasks ran within a day; late status lists the queues that there are"
        )
    if name is not None and not any(_tells_of(control, name, group or DEFAULT_GROUP)):
        raise ConfigError(
            f"no task {name[:128]!r}: none waits or is dead, no schedule and no live worker has "
            "the name, and none ran within a day; late tasks list and late dead list show names"
        )


def is_queue(control: Control, name: str) -> bool:
    """Return True if a queue has a task, a knob or a schedule, or had one of them lately."""
    return (
        any(each.name == name for each in control.queues.settings("queue"))
        or any(name == each.queue for each in control.status.read(limit=LOOK).queues)
        or any(name == each.queue for each in control.schedules.all())
        or bool(control.audit.entries(subject=f"queue:{name}", limit=1))
        or any(name == usage.queue for _, usage in _usage(control))
    )


def _tells_of(control: Control, name: str, group: str) -> Iterator[bool]:
    """Yield for each place where a task's name may be, the cheap ones first, whether it has it."""
    from late.control.task_list.model import TaskFilter

    fleet = control.compare_handlers({}, group=group)
    yield any(name == each.name for each in fleet.missing)
    yield any(name == each.task_name for each in control.schedules.all())
    which = TaskFilter(group=group, name=name)
    for state in _STATES:
        yield bool(control.tasks.find(state, which, limit=1).tasks)
    yield any(name == usage.name for _, usage in _usage(control))


def _usage(control: Control) -> Iterator[tuple[str, Usage]]:
    """Yield what the journal of the last day has, as far as one look."""
    yield from control.status.usage_since(control.now() - _DAY_US, {}).usage
