"""Knobs of queues and targets: look, turn, undo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from late.api.errors import NotFound
from late.api.operator.operation import Ask, Nothing, Operation, operation
from late.api.operator.values import Listed, Name
from late.control.audit import Entry
from late.control.queue_deletion import QueueDeletion
from late.control.queue_settings import Settings, SettingsChange
from late.control.simulation.comparison import Simulation
from late.control.simulation.variants import SLOTS_MAX, variants
from late.model import queue_settings as values
from late.model.access.rules import ADMIN_WHOLE, VIEW, WHOLE, Rule
from late.model.queue_settings import LOCAL, REMOTE, Kind, QueueSettings
from late.model.targets import is_known

QUEUE, TARGET = "/v1/queues/{queue}", "/v1/targets/{target}"
VIEW_QUEUE, OPERATE_QUEUE = Rule("view", "queue"), Rule("operate", "queue")
CHANGES_MAX = 1_000
SIMULATED_MAX = 20_000
"""Attempts of one run, about: the process serves others meanwhile."""


class AllKnobs(msgspec.Struct):
    """The knobs that are set, queues before targets."""

    knobs: list[Settings]


class Knobs(msgspec.Struct, kw_only=True):
    """The knobs of one queue or target."""

    kind: Kind
    name: str
    chosen: QueueSettings = msgspec.field(name="set")
    effective: QueueSettings
    """Each that is set, and the defaults of the others."""


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """Knobs get values; null takes one back."""

    # A whole number stays one: some knobs take no other.
    knobs: Annotated[dict[str, int | float | bool | str | None], Meta(min_length=1, max_length=100)]
    dry_run: bool = False


class ListChanges(msgspec.Struct, forbid_unknown_fields=True):
    """The latest changes are listed."""

    limit: Listed = 20


class Changes(msgspec.Struct):
    """Changes, the latest first."""

    changes: list[Entry]


class Simulate(msgspec.Struct, forbid_unknown_fields=True):
    """A simulation of a queue is asked for. `variants` has knobs and sizes, one variant after
    the other: `rate=50,concurrency=20;workers=4`. `slots` are those of each worker as it is."""

    since: Annotated[str, Meta(min_length=1, max_length=64)] = "24h"
    variants: Annotated[str, Meta(max_length=1_000)] = ""
    slots: Annotated[int, Meta(ge=1, le=SLOTS_MAX)] | None = None
    group: Name | None = None


class Undo(msgspec.Struct, forbid_unknown_fields=True):
    """One change of this queue or target is undone."""

    change: Annotated[str, Meta(min_length=1, max_length=64)]


class DeleteQueue(msgspec.Struct, forbid_unknown_fields=True):
    """A queue that nobody uses any more is deleted."""

    dry_run: bool = False
    force: bool = False
    """Also while live workers serve it."""


class TargetRow(msgspec.Struct):
    """One service that executes tasks, as this process is configured."""

    name: str
    kind: str
    where: str
    protection: str
    concurrency: int


class Targets(msgspec.Struct):
    """Targets, by name."""

    targets: list[TargetRow]


def _of(ask: Ask[Any]) -> tuple[Kind, str]:
    return ("queue", ask.path["queue"]) if "queue" in ask.path else ("target", ask.path["target"])


def _turn(ask: Ask[Any], changes: Mapping[str, Any], *, dry_run: bool = False) -> SettingsChange:
    kind, name = _of(ask)
    return ask.control.queues.change(kind, name, changes, dry_run=dry_run)


def _knobs(ask: Ask[Any]) -> Knobs:
    kind, name = _of(ask)
    found = next((each for each in ask.control.queues.settings(kind) if each.name == name), None)
    if found is None and kind == "target" and not is_known(name, ask.targets):
        raise NotFound(f"no target {name!r}: no knob of it is set, and this process has none")
    chosen = QueueSettings() if found is None else found.knobs
    defaults = LOCAL if kind == "queue" or name == "local" else REMOTE
    return Knobs(kind=kind, name=name, chosen=chosen, effective=values.effective(chosen, defaults))


def _undo(ask: Ask[Undo]) -> SettingsChange:
    kind, name = _of(ask)
    known = ask.control.audit.entries(subject=f"{kind}:{name}", limit=CHANGES_MAX)
    if ask.value.change not in {entry.audit_id for entry in known}:
        raise NotFound(f"that change was not one of this {kind}")
    return ask.control.queues.rollback(ask.value.change)


@operation("GET", "/v1/knobs", VIEW, "knobs")
def list_knobs(ask: Ask[Nothing]) -> AllKnobs:
    """List the knobs that are set."""
    may, sees_all = ask.caller.may, ask.caller.may_all("view")
    found = ask.control.queues.settings()
    return AllKnobs(
        [each for each in found if sees_all or (each.kind == "queue" and may("view", each.name))]
    )


@operation("GET", "/v1/changes", WHOLE, "knobs")
def list_changes(ask: Ask[ListChanges]) -> Changes:
    """List what operators changed, the latest first: the audit."""
    return Changes(ask.control.audit.entries(limit=ask.value.limit))


@operation("GET", f"{QUEUE}/knobs", VIEW_QUEUE, "queue show")
def show_queue_knobs(ask: Ask[Nothing]) -> Knobs:
    """Show every knob of a queue, set or by default."""
    return _knobs(ask)


@operation("PATCH", f"{QUEUE}/knobs", OPERATE_QUEUE, "queue set")
def set_queue_knobs(ask: Ask[Turn]) -> SettingsChange:
    """Set knobs of a queue."""
    return _turn(ask, ask.value.knobs, dry_run=ask.value.dry_run)


@operation("POST", f"{QUEUE}/pause", OPERATE_QUEUE, "queue pause")
def pause_queue(ask: Ask[Nothing]) -> SettingsChange:
    """Start none of its tasks until it is resumed."""
    return _turn(ask, {"paused": True})


@operation("POST", f"{QUEUE}/resume", OPERATE_QUEUE, "queue resume")
def resume_queue(ask: Ask[Nothing]) -> SettingsChange:
    """Start its tasks again."""
    return _turn(ask, {"paused": None})


@operation("GET", f"{QUEUE}/changes", VIEW_QUEUE, "knobs")
def list_queue_changes(ask: Ask[ListChanges]) -> Changes:
    """List who changed the knobs of a queue, the latest first."""
    subject = f"queue:{ask.path['queue']}"
    return Changes(ask.control.audit.entries(subject=subject, limit=ask.value.limit))


@operation("GET", f"{QUEUE}/simulation", VIEW_QUEUE, "simulate")
def simulate_queue(ask: Ask[Simulate]) -> Simulation:
    """Run what a queue has done again, with its knobs and with others."""
    value = ask.value
    texts = [text for text in value.variants.split(";") if text.strip()]
    return ask.control.status.simulate(
        ask.path["queue"], since=value.since, group=value.group or ask.group,
        variants=variants(texts), slots=value.slots, jobs=SIMULATED_MAX,
    )  # fmt: skip


@operation("POST", f"{QUEUE}/undo", OPERATE_QUEUE, "knobs rollback")
def undo_queue_change(ask: Ask[Undo]) -> SettingsChange:
    """Undo one change of a queue's knobs."""
    return _undo(ask)


@operation("POST", f"{QUEUE}/delete", Rule("admin", "queue"), "queue delete")
def delete_queue(ask: Ask[DeleteQueue]) -> QueueDeletion:
    """Take the knobs of an unused queue away, and leave it out of status, page and metrics."""
    asked = ask.value
    return ask.control.queues.delete(ask.path["queue"], force=asked.force, dry_run=asked.dry_run)


@operation("GET", "/v1/targets", WHOLE, "target list")
def list_targets(ask: Ask[Nothing]) -> Targets:
    """List the services that execute tasks, as this process is configured."""
    return Targets(
        [
            TargetRow(name, target.kind, target.where, target.protection, target.concurrency)
            for name, target in sorted(ask.targets.items())
        ]
    )


@operation("GET", f"{TARGET}/knobs", WHOLE, "target show")
def show_target_knobs(ask: Ask[Nothing]) -> Knobs:
    """Show every knob of a target, set or by default."""
    return _knobs(ask)


@operation("PATCH", f"{TARGET}/knobs", ADMIN_WHOLE, "target set")
def set_target_knobs(ask: Ask[Turn]) -> SettingsChange:
    """Set knobs of a target."""
    return _turn(ask, ask.value.knobs, dry_run=ask.value.dry_run)


@operation("POST", f"{TARGET}/pause", ADMIN_WHOLE, "target pause")
def pause_target(ask: Ask[Nothing]) -> SettingsChange:
    """Call it no more until it is resumed."""
    return _turn(ask, {"paused": True})


@operation("POST", f"{TARGET}/resume", ADMIN_WHOLE, "target resume")
def resume_target(ask: Ask[Nothing]) -> SettingsChange:
    """Call it again."""
    return _turn(ask, {"paused": None})


@operation("POST", f"{TARGET}/undo", ADMIN_WHOLE, "knobs rollback")
def undo_target_change(ask: Ask[Undo]) -> SettingsChange:
    """Undo one change of a target's knobs."""
    return _undo(ask)


OPERATIONS: tuple[Operation, ...] = (
    list_knobs, list_changes, show_queue_knobs, set_queue_knobs, pause_queue, resume_queue,
    list_queue_changes, simulate_queue, undo_queue_change, delete_queue, list_targets,
    show_target_knobs,
    set_target_knobs, pause_target, resume_target, undo_target_change,
)  # fmt: skip
