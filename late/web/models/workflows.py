"""Workflows: a list of them, and the picture of one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from late.control.views import StageView
from late.control.workflows import WorkflowPage, WorkflowView
from late.web.formats import age

Level = Literal["bad", "warn", "ok"]
PAGE = 50
STAGES_SHOWN = 30
"""The most stages of one level on a page."""
IN_ALL = 120
"""The most stages on a page, as far as each level may have one."""
_LEVELS: dict[str, Level] = {"failed": "bad", "cancelled": "warn"}
_STAGE_LEVELS: dict[str, Level] = {"dead": "bad", "expired": "warn", "discarded": "warn",
                                   "cancelled": "warn", "stopping": "warn", "purged": "bad",
                                   "skipped": "warn"}  # fmt: skip
_RANKS: dict[Level, int] = {"bad": 0, "warn": 1, "ok": 2}


class WorkflowRow(msgspec.Struct, frozen=True):
    """One line of the list."""

    view: WorkflowView
    level: Level
    progress: str
    age: str


class Workflows(msgspec.Struct, frozen=True):
    """One page of the list."""

    rows: tuple[WorkflowRow, ...]
    after: str | None
    """The next page begins here; None on the last page."""
    looked: int
    stopped: bool
    """The look ended at its bound: this page may be short, and there may be more on the next."""


def workflows(page: WorkflowPage) -> Workflows:
    """Make the model of a page."""
    rows = tuple(row(each, page.now_us) for each in page.workflows)
    stopped = page.after is not None and len(rows) < PAGE
    return Workflows(rows, page.after, page.looked, stopped)


def row(view: WorkflowView, now_us: int) -> WorkflowRow:
    """Make the line of one workflow."""
    old = age(max(0, now_us - view.made_at_us) / 1e6)
    return WorkflowRow(view, _LEVELS.get(view.state, "ok"), f"{view.done} of {view.tasks}", old)


class StageBox(msgspec.Struct, frozen=True):
    """One stage in the picture of a workflow."""

    view: StageView
    level: Level
    note: str


class StageLevel(msgspec.Struct, frozen=True):
    """The stages that are equally deep."""

    boxes: tuple[StageBox, ...]
    more: str
    """The numbers of those that are not shown, by their state; may be empty."""


def levels(stages: Sequence[StageView], own: str | None = None) -> list[StageLevel]:
    """Put the stages of a workflow into levels: each is deeper than those before it.

    Args:
        own: the id of the task whose page it is. It is shown in any case.
    """
    depth: dict[int, int] = {}
    found: list[list[StageBox]] = []
    for view in stages:
        # Who may see some queues has not all stages that are before this one.
        before = [depth[each] + 1 for each in view.after if each in depth]
        depth[view.stage] = at = max(before, default=0)
        if at == len(found):
            found.append([])
        note = f"after {', '.join(map(str, view.after[:10]))}" if view.after else ""
        if len(view.after) > 10:
            note += f" and {len(view.after) - 10} more"
        if view.on_failure:
            note = "on failure"
        found[at].append(StageBox(view, _STAGE_LEVELS.get(view.state, "ok"), note))
    most = max(1, min(STAGES_SHOWN, IN_ALL // max(1, len(found))))
    return [_shown(boxes, own, most) for boxes in found]


def _shown(boxes: list[StageBox], own: str | None, most: int) -> StageLevel:
    """Show the own one and those in trouble before the others, all in their order."""
    ranked = sorted(boxes, key=lambda box: (box.view.task_id != own, _RANKS[box.level]))
    kept = sorted(ranked[:most], key=lambda box: box.view.stage)
    states = Counter(box.view.state for box in ranked[most:])
    return StageLevel(tuple(kept), ", ".join(f"{n} {state}" for state, n in states.items()))
