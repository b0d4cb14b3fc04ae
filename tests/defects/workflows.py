"""Defects in workflows: what the end of one task starts."""

from __future__ import annotations

from typing import Any

from late.model import workflow
from late.model.workflow import Stage
from late.scheduler.core.shard_core import ShardCore
from late.store.postgres import stages as postgres_stages
from late.store.sqlite import stages as sqlite_stages
from tests.defects.components import replace
from tests.defects.defect import Defect
from tests.defects.statements import _edit

STAGES = "tests/conformance/test_stages.py::"
FIRST_WORLD = 600_000
"""Worlds from here on have workflows."""


def end_counts_again() -> None:
    """PostgreSQL counts the end of a stage again when its task is repeated."""
    old = "s.state in ('started', 'stopping', 'dead') and s.state <> u.state"
    _edit(postgres_stages, "_END", old, "s.state <> 'waiting'")


def join_without_lock() -> None:
    """Two ends of one workflow do not wait for each other on PostgreSQL."""
    _edit(postgres_stages, "_LOCK", " order by workflow_id for update", "")


def any_branch_opens_the_join() -> None:
    """A stage starts when one of those before it is done."""

    def go_on(row: Stage, rows: workflow.Rows, found: workflow.Changes) -> None:
        for after in rows.of_workflow(row.workflow_id, row.next):
            after.missing = 1
        old(row, rows, found)

    old = replace(workflow, "_go_on", go_on)


def failure_goes_on() -> None:
    """The stage after one that has failed starts all the same."""

    def go_on(row: Stage, rows: workflow.Rows, found: workflow.Changes) -> None:
        state, row.state = row.state, "done"
        old(row, rows, found)
        row.state = state

    old = replace(workflow, "_go_on", go_on)


def cancel_of_one() -> None:
    """A cancel of a stage that waits finds no task, and does nothing."""

    def ignore(self: Any, task_id: Any) -> None: ...

    replace(ShardCore, "cancel_workflow", ignore)


def redrive_ends_for_nobody() -> None:
    """The end of a stage that was a dead letter counts no more."""
    replace(workflow, "OPEN", ("started", "stopping"))
    replace(sqlite_stages, "REVIVED", sqlite_stages.REVIVED.replace("'dead'", "'none'"))


DEFECTS = (
    Defect(
        "stage-again", "the end of a stage counts again when its task is repeated",
        end_counts_again, STAGES + "test_a_stage_that_ends_twice_counts_once[postgres]",
        r"AssertionError",
    ),
    Defect(
        "join-unlocked", "two ends of one workflow do not see each other",
        join_without_lock,
        STAGES + "test_branches_that_end_at_once_in_several_workers_start_the_join_once[postgres]",
        r"assert",
    ),
    Defect(
        "join-early", "a stage starts when one of those before it is done",
        any_branch_opens_the_join, "worlds", r"S21:", worlds=20, first=FIRST_WORLD,
    ),
    Defect(
        "failure-goes-on", "the stage after one that has failed starts all the same",
        failure_goes_on, "worlds", r"S21:", worlds=20, first=FIRST_WORLD,
    ),
    Defect(
        "cancel-of-one", "a cancel of a stage that waits does nothing",
        cancel_of_one, "worlds", r"E10:|S17:", worlds=40, first=FIRST_WORLD,
    ),
    Defect(
        "redrive-for-nobody", "the end of a stage that was redriven counts no more",
        redrive_ends_for_nobody, STAGES + "test_a_redriven_stage_goes_on[sqlite]",
        r"AssertionError",
    ),
)  # fmt: skip
