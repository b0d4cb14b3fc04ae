"""From a world that broke to the smallest one that still does, for people to read.

First whole kinds of faults go, then single faults, then bookings by halves. Each step keeps the
seed and with it everything else; a step stands if what is left still breaks *something*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from late.model.queue_settings import QueueSettings
from tests.simulator.plan import Plan
from tests.simulator.world import Result, World

T = TypeVar("T")
TRIES = 200
"""Worlds that one minimisation may live."""


def minimise(broken: Result, run: Callable[[Plan], Result] | None = None) -> Result:
    """The smallest broken world that was found on the way from `broken`."""
    live = run or (lambda plan: World(plan).run())
    best, tries = broken, 0

    def breaks(plan: Plan) -> bool:
        nonlocal best, tries
        if tries >= TRIES:
            return False
        tries += 1
        result = live(plan)
        if result.error is None:
            return False
        best = result
        return True

    replace = msgspec.structs.replace
    breaks(replace(best.plan, settings=QueueSettings()))
    breaks(replace(best.plan, jumps=()))
    for kind in sorted({fault.kind for fault in best.plan.faults}):
        fewer = tuple(fault for fault in best.plan.faults if fault.kind != kind)
        breaks(replace(best.plan, faults=fewer))
    _shrink(best.plan.faults, lambda kept: breaks(replace(best.plan, faults=kept)))
    _shrink(best.plan.orders, lambda kept: breaks(replace(best.plan, orders=kept)))
    _shrink(best.plan.flows, lambda kept: breaks(replace(best.plan, flows=kept)))
    _shrink(best.plan.resets, lambda kept: breaks(replace(best.plan, resets=kept)))
    _shrink(best.plan.bookings, lambda kept: breaks(replace(best.plan, bookings=kept)))
    return best


def _shrink(items: Sequence[T], breaks: Callable[[tuple[T, ...]], bool]) -> None:
    """Take away ever smaller runs of `items`, for as long as what is left still breaks."""
    kept = tuple(items)
    size = max(1, len(kept) // 2)
    while kept:
        start = 0
        while start < len(kept):
            fewer = kept[:start] + kept[start + size :]
            if breaks(fewer):
                kept = fewer
            else:
                start += size
        if size == 1:
            return
        size //= 2


def describe(result: Result) -> str:
    """A broken world in a few lines: the seed to live it again, and what went wrong in it."""
    plan = result.plan
    lines = [
        f"seed {plan.seed} on {plan.profile}: {result.error}",
        f"  {plan.workers} workers, {plan.shards} shards, groups {', '.join(plan.groups)}, "
        f"ttl {plan.ttl_s:g} s, window {plan.window}",
    ]
    if plan.older:
        lines.append(f"  {plan.older:.0%} of the processes place shards as before bounded loads")
    if plan.sharing is not None:
        lines.append(f"  {plan.sharing}")
    if plan.settings != QueueSettings():
        lines.append(f"  {plan.settings}")
    for fault in plan.faults:
        lasts = f" for {fault.for_s:.2f} s" if fault.kind not in ("kill", "restart") else ""
        lines.append(f"  {fault.at_s:7.3f} s  {fault.kind} in place {fault.worker}{lasts}")
    tasks = sum(len(booking.tasks) for booking in plan.bookings)
    lines.append(f"  {len(plan.bookings)} transactions with {tasks} tasks")
    lines += [f"  {j.at_s:7.3f} s  the clock is set by {j.by_s:+g} s" for j in plan.jumps]
    lines += [f"  {r.at_s:7.3f} s  {r.group} is reset to {r.to}" for r in plan.resets]
    lines += [f"  {o.at_s:7.3f} s  {o.row.name} {o.row.payload.decode()}" for o in plan.orders]
    return "\n".join(lines)
