"""The decision: one size and its reason, from an observation and the state before it. Pure.

    1. hold on metrics that are missing or stale
    2. the rule: overload | linear | stepwise | direct; a rise, the forecast and hints may ask for
       more
    3. scale in only at allowed times, and to a size that was enough throughout the stable window
    4. cool-downs, then step limits
    5. last, the floors and the ceiling: minimum, storage, databases, maximum

When a floor rises above the present size (data has grown, the file was changed), the size follows
at once: a cool-down must not delay a database that cannot hold its data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from late.autoscaler.policy import DATABASES_PER_NODE, Policy
from late.autoscaler.time_windows import contains, scale_in_forbidden_by

READINGS_MAX = 2_000
TREND_US = 300 * 1_000_000
"""A rise is that from the mean of so long to the mean of as long after it."""


class Observation(msgspec.Struct, frozen=True):
    """The known figures of the database now. Each but the size may be missing."""

    size: int
    at_us: int | None = None
    """The time when `cpu` was measured, not when it was asked for."""
    cpu: float | None = None
    """High-priority CPU of all nodes, percent."""
    measured_size: int | None = None
    """The size that `cpu` was measured with; None: the present one. A reading is minutes old: with
    the present size it would ask again for what was just granted."""
    cpu_24h: float | None = None
    storage_bytes: int | None = None
    databases: int | None = None
    forecast: float | None = None
    """Load to be ready for, in units of size at 100 % CPU: `forecast.forecast`."""
    cpu_total: float | None = None
    """CPU of all priorities, measured with `cpu`, percent."""


class Reading(msgspec.Struct, frozen=True, array_like=True):
    """One past reading, for the stable window and the averages."""

    at_us: int
    load: float
    """Load in units of size at 100 % CPU, from which the CPU at any other size follows. If the
    total CPU asks for more, it is the high-priority load that would ask for as much."""


class State(msgspec.Struct, frozen=True):
    """The memory between decisions. Without it (a new controller) nothing shrinks before a whole
    stable window was seen."""

    readings: tuple[Reading, ...] = ()
    up_us: int | None = None
    """Time of the last step up."""
    down_us: int | None = None
    """Time of the last step down."""


class Decision(msgspec.Struct, frozen=True):
    """The result of one look: the size asked for, the rule behind it, and the size to set."""

    at_us: int
    rule: str
    from_size: int
    to_size: int
    wanted: int
    """The size that the rule asked for, before limits and cool-downs."""
    why: str
    """The reason, for people, why it is `to_size` and not `wanted`, or why nothing changes."""
    inputs: dict[str, Any]

    @property
    def changes(self) -> bool:
        return self.to_size != self.from_size


def decide(policy: Policy, seen: Observation, state: State, now_us: int) -> tuple[Decision, State]:
    """Decide once; return the decision and the state for the next. The caller reports with
    `after_step` that it was carried out; until then nothing counts as a step."""
    floor, floor_rule = least_size(policy, seen, now_us)
    stale = _reason_to_hold(policy, seen, now_us)
    if stale is not None:
        return _held(seen, now_us, stale), state
    assert seen.at_us is not None
    assert seen.cpu is not None
    load = None
    if _settling(seen, state):
        wanted, rule = seen.size, "settling"
    else:
        state = _remember(policy, seen, state)
        load = _smoothed(policy, state)
        wanted, rule = _wanted(policy, seen, load)
        wanted, rule = _carried_forward(policy, state, load, wanted, rule)
    if wanted < floor:
        wanted, rule = floor, floor_rule
    wanted = min(max(wanted, floor), policy.max)
    to, why = wanted, "measured before the last step" if rule == "settling" else ""
    if wanted > seen.size:
        to, why = _limit_scale_out(policy, seen, state, now_us, wanted, rule)
    elif wanted < seen.size:
        to, why = _limit_scale_in(policy, seen, state, now_us, wanted, floor)
    # No rule, limit or cool-down may lead below the minimum or the size of the data.
    hard, hard_rule = _least_needed(policy, seen)
    if to < hard and hard > seen.size:
        to, rule, why = min(hard, policy.max), hard_rule, "met at once"
    inputs = {**_known_fields(seen), "target_cpu": policy.target}
    if load is not None:
        inputs["load"] = round(load, 3)
    return Decision(now_us, rule, seen.size, to, wanted, why, inputs), state


def after_step(decision: Decision, state: State) -> State:
    """The state after a decision was carried out."""
    if decision.to_size > decision.from_size:
        return msgspec.structs.replace(state, up_us=decision.at_us)
    if decision.to_size < decision.from_size:
        return msgspec.structs.replace(state, down_us=decision.at_us)
    return state


def least_size(policy: Policy, seen: Observation, now_us: int) -> tuple[int, str]:
    """Return the least size that may be decided now, and the rule that demands it."""
    floor, rule = _least_needed(policy, seen)
    for hint in policy.hints:
        if hint.size > floor and contains(hint, now_us):
            floor, rule = hint.size, "hint"
    return min(policy.size_at_least(floor), policy.max), rule


def _least_needed(policy: Policy, seen: Observation) -> tuple[int, str]:
    """Return the size below which the database does not work at any load, and the reason."""
    floor, rule = policy.min, "minimum"
    if seen.storage_bytes is not None:
        room = policy.storage_per_node_gib * 2**30 * policy.storage_fill / 100
        size = policy.size_at_least(seen.storage_bytes / room * policy.node)
        if size > floor:
            floor, rule = size, "storage"
    if seen.databases is not None and policy.units == "processing_units":
        size = policy.size_at_least(math.ceil(seen.databases / DATABASES_PER_NODE * 10) * 100)
        if size > floor:
            floor, rule = size, "databases"
    return floor, rule


def _reason_to_hold(policy: Policy, seen: Observation, now_us: int) -> str | None:
    if seen.cpu is None or seen.at_us is None:
        return "no metrics: the size is held"
    if not (math.isfinite(seen.cpu) and 0 <= seen.cpu <= 1000):
        return f"CPU {seen.cpu} is not a possible value: the size is held"
    if policy.target_cpu_total is not None:
        if seen.cpu_total is None:
            return "no metrics of the total CPU: the size is held"
        if not (math.isfinite(seen.cpu_total) and 0 <= seen.cpu_total <= 1000):
            return f"total CPU {seen.cpu_total} is not a possible value: the size is held"
    age_s = (now_us - seen.at_us) / 1e6
    if age_s > policy.stale_s:
        return f"metrics are {age_s:.0f} s old, at most {policy.stale_s:.0f}: the size is held"
    if age_s < -policy.stale_s:
        return f"metrics are {-age_s:.0f} s ahead of the clock: the size is held"
    return None


def _settling(seen: Observation, state: State) -> bool:
    """Return True while the size that the CPU was measured with is unknown."""
    last = max((each for each in (state.up_us, state.down_us) if each is not None), default=None)
    return seen.measured_size is None and last is not None and (seen.at_us or 0) <= last


def _held(seen: Observation, now_us: int, why: str) -> Decision:
    return Decision(now_us, "hold", seen.size, seen.size, seen.size, why, _known_fields(seen))


def _remember(policy: Policy, seen: Observation, state: State) -> State:
    assert seen.at_us is not None
    assert seen.cpu is not None
    if state.readings and state.readings[-1].at_us >= seen.at_us:
        return state  # the same reading again
    # Long enough to see the whole window even when readings are `stale_s` apart, and a rise.
    since = seen.at_us - max(round((policy.stable_s + policy.stale_s) * 1e6), 2 * TREND_US)
    kept = [each for each in state.readings if each.at_us >= since]
    cpu = effective_cpu(policy, seen.cpu, seen.cpu_total)
    kept.append(Reading(seen.at_us, cpu * (seen.measured_size or seen.size) / 100))
    return msgspec.structs.replace(state, readings=tuple(kept[-READINGS_MAX:]))


def effective_cpu(policy: Policy, cpu: float, total: float | None) -> float:
    """Return the CPU to compare with the target: the high-priority CPU, or the value at which it
    would ask for as much as the total CPU does, if that is more."""
    if policy.target_cpu_total is None or total is None:
        return cpu
    return max(cpu, total * policy.target / policy.target_cpu_total)


def _smoothed(policy: Policy, state: State) -> float:
    last = state.readings[-policy.smooth :]
    newest = last[-1].at_us
    # A reading from before a gap tells nothing about now.
    near = [each.load for each in last if newest - each.at_us <= policy.stale_s * 1e6]
    return sum(near) / len(near)


def _wanted(policy: Policy, seen: Observation, load: float) -> tuple[int, str]:
    """Return the size that the method asks for, and the name of the rule."""
    assert seen.cpu is not None
    size = seen.size
    if policy.method == "direct":
        return policy.max, "direct"
    if seen.cpu >= policy.overload_cpu:
        known = seen.measured_size or size
        return max(size, policy.size_at_least(known * policy.overload_factor)), "overload"
    cpu = load / size * 100
    wanted, rule = size, "within"
    if cpu > policy.target + policy.margin or cpu < policy.target - policy.margin:
        if policy.method == "linear":
            wanted, rule = policy.size_at_least(load / policy.target * 100), "linear"
        elif cpu > policy.target:
            wanted, rule = policy.size_at_least(size + policy.step), "stepwise"
        else:
            wanted, rule = policy.size_at_most(max(1, size - policy.step)), "stepwise"
            # One step less must still hold the target and its margin.
            if load / wanted * 100 > policy.target + policy.margin:
                wanted = size
    if seen.cpu_24h is not None and seen.cpu_24h > policy.target_cpu_24h:
        day = policy.size_at_least(size * seen.cpu_24h / policy.target_cpu_24h)
        wanted, rule = (day, "cpu_24h") if day > wanted else (wanted, rule)
    if seen.forecast is not None:
        ahead = policy.size_at_least(seen.forecast / (policy.target + policy.margin) * 100)
        wanted, rule = (ahead, "forecast") if ahead > wanted else (wanted, rule)
    return wanted, rule


def _carried_forward(
    policy: Policy, state: State, load: float, wanted: int, rule: str
) -> tuple[int, str]:
    """Ask for more where the load rises; in an overload the CPU does not tell how fast."""
    if not policy.trend_lead_s or rule in ("overload", "direct"):
        return wanted, rule
    ahead = load + _rise_per_s(state.readings) * policy.trend_lead_s
    size = policy.size_at_least(ahead / policy.trend_cpu * 100)
    return (size, "trend") if size > wanted else (wanted, rule)


def _rise_per_s(readings: Sequence[Reading]) -> float:
    """Return the rise of the load between the means of two stretches of time; 0 while it falls, or
    if one of them has no readings."""
    newest = readings[-1].at_us
    halves: tuple[list[float], list[float]] = [], []
    for each in readings:
        age_us = newest - each.at_us
        if age_us < 2 * TREND_US:
            halves[age_us < TREND_US].append(each.load)
    before, after = halves
    if not before or not after:
        return 0.0
    rise = sum(after) / len(after) - sum(before) / len(before)
    return max(0.0, rise / (TREND_US / 1e6))


def _limit_scale_out(
    policy: Policy, seen: Observation, state: State, now_us: int, wanted: int, rule: str
) -> tuple[int, str]:
    # An overload does not wait for the last step up, but it does wait after a step down: turning
    # at once would be an oscillation.
    moments = [state.down_us] if rule == "overload" else [state.down_us, state.up_us]
    wait_s = _wait_s(moments, policy.up_cooldown_s, now_us)
    if rule == "overload" and wait_s <= 0 and (seen.at_us or 0) <= (state.up_us or 0):
        # The reading does not show the effect of that step yet.
        return seen.size, "measured before the last step up"
    if wait_s > 0:
        return seen.size, f"up to {wanted} waits for {wait_s:.0f} s more"
    limits = [each for each in (policy.up_step_max,) if each is not None]
    if policy.up_percent_max is not None:
        limits.append(math.floor(seen.size * policy.up_percent_max / 100))
    if limits:
        # At least to the next size that exists; with a lower limit it would never grow.
        most = max(policy.size_at_least(seen.size + 1) - seen.size, min(limits))
        if wanted > seen.size + most:
            return policy.size_at_most(seen.size + most), f"at most {most} more at once"
    return wanted, ""


def _limit_scale_in(
    policy: Policy, seen: Observation, state: State, now_us: int, wanted: int, floor: int
) -> tuple[int, str]:
    forbidden = scale_in_forbidden_by(policy, now_us)
    if forbidden:
        return seen.size, f"down to {wanted}: not at this time ({forbidden})"
    wait_s = _wait_s([state.down_us, state.up_us], policy.down_cooldown_s, now_us)
    if wait_s > 0:
        return seen.size, f"down to {wanted} waits for {wait_s:.0f} s more"
    needed = _stable_size(policy, state)
    if needed is None:
        return seen.size, f"down to {wanted}: not yet seen for {policy.stable_s:.0f} s on end"
    needed = min(needed, policy.max)
    least, why = max(wanted, needed, floor), ""
    if least > wanted:
        why = f"{needed} was needed within the last {policy.stable_s:.0f} s"
    limits = [each for each in (policy.down_step_max,) if each is not None]
    if policy.down_percent_max is not None:
        # At least to the next size that exists, as upwards: shards are halved, and above one node
        # processing units come in thousands; with a smaller share it would never shrink.
        one = seen.size - policy.size_at_most(seen.size - 1)
        limits.append(max(one, math.floor(seen.size * policy.down_percent_max / 100)))
    if limits and least < seen.size - min(limits):
        least, why = (
            policy.size_at_least(seen.size - min(limits)),
            f"at most {min(limits)} less at once",
        )
    return min(least, seen.size), why


def _stable_size(policy: Policy, state: State) -> int | None:
    """Return the size that would have been enough for every reading of the stable window; None if
    the window was not seen whole or has a gap."""
    readings = state.readings
    if not readings:
        return None
    since = readings[-1].at_us - round(policy.stable_s * 1e6)
    if policy.stable_s and readings[0].at_us > since:
        return None
    loads, highest = [each.load for each in readings], 0.0
    for i in range(len(readings) - 1, -1, -1):
        if readings[i].at_us < since:
            break
        if i and readings[i].at_us - readings[i - 1].at_us > policy.stale_s * 1e6:
            return None
        part = loads[max(0, i + 1 - policy.smooth) : i + 1]
        highest = max(highest, sum(part) / len(part))
    return policy.size_at_least(highest / policy.target * 100)


def _wait_s(moments: list[int | None], cooldown_s: float, now_us: int) -> float:
    last = max((each for each in moments if each is not None), default=None)
    return 0.0 if last is None else cooldown_s - (now_us - last) / 1e6


def _known_fields(seen: Observation) -> dict[str, Any]:
    found = msgspec.structs.asdict(seen)
    return {name: value for name, value in found.items() if value is not None}
