"""Defects of what changes a size: lanes that are resized, and the autoscaler."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from late import outbox
from late.app import rows
from late.autoscaler import decide
from late.autoscaler.autoscaler import Autoscaler
from late.control import autoscale_journal as autoscale
from late.control.lanes import open_transactions as transactions
from late.model.lanes import Gate
from late.model.task import Fence
from late.scheduler.core.lane_drain import LaneDrain
from late.tailer import ownership
from tests.defects.components import replace
from tests.defects.defect import Defect


def keys_move_at_once() -> None:
    """A new shard does not wait for what the old one has of a key."""
    replace(Gate, "opens", lambda self, group, shard_id, key, version: True)


def nothing_left_at_the_closing() -> None:
    """The owner of an old shard says that it has nothing left as soon as it has read all."""

    def init(self: Any, lease: Any, gate: Any, left: Any) -> None:
        old(self, lease, gate, lambda version: [])

    old = replace(LaneDrain, "__init__", init)


def closed_at_once() -> None:
    """Closings are written although older transactions may still commit."""
    replace(transactions, "_RUNNING", text("select 'none' where false"))
    replace(transactions, "_PREPARED", text("select 'none' where false"))


def insert_by_an_old_lane() -> None:
    """A producer does not ask whether its lane is still the same."""

    def write(
        tx: Any, rows: Any, again: Any = None, asked: Any = None, *, autocommit: bool = False
    ) -> Any:
        return old(tx, rows, None, asked, autocommit=autocommit)

    old = replace(outbox, "write", write)


def fence_of_another_lane() -> None:
    """Whatever lane its key is in, an insert depends on the version of `default`."""
    replace(rows, "Fence", lambda lane, version: Fence("default", version))


def lanes_unheeded() -> None:
    """Shards are placed among all workers, whatever lanes they serve."""
    owners = ownership._owners
    replace(
        ownership, "_placed",
        lambda group, shards, nodes, number, layout: owners(group, shards, nodes, number, ()),
    )  # fmt: skip


def stale_metrics_count() -> None:
    """How old a reading is is not asked."""

    def unusable(policy: Any, seen: Any, now_us: int) -> Any:
        return None if seen.cpu is not None else old(policy, seen, now_us)

    old = replace(decide, "_reason_to_hold", unusable)


def no_cooldown() -> None:
    """A step waits for no other."""
    replace(decide, "_wait_s", lambda moments, cooldown_s, now_us: 0.0)


def below_the_data() -> None:
    """The minimum is the only floor."""
    replace(decide, "_least_needed", lambda policy, seen: (policy.min, "minimum"))


def two_controllers() -> None:
    """Whoever held the term once may write on."""

    def fenced(connection: Any, term: Any) -> Any:
        return connection.execute(autoscale._locked(connection, term.controller)).one()

    replace(autoscale, "_fenced", fenced)


def trusted_for_ever() -> None:
    """A controller that was paused does not ask its clock before it acts."""

    def change(self: Any, term: Any, decision: Any, trusted_until: float) -> None:
        old(self, term, decision, float("inf"))

    old = replace(Autoscaler, "_change", change)


DEFECTS = (
    Defect(
        "fence-of-another-lane",
        "an insert depends on the version of a lane that is not its own",
        fence_of_another_lane,
        "tests/integration/test_named_lanes.py::test_keys_of_a_lane_follow_its_resize[sqlite]",
        r"assert",
    ),
    Defect(
        "lanes-unheeded",
        "a worker owns shards of lanes that it does not serve",
        lanes_unheeded,
        "worlds",
        r"E11:",
        worlds=20,
        first=930_000,
    ),
)
