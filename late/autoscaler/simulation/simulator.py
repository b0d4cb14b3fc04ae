"""A simulated database under a load, and the controller that sizes it. Pure.

The model is a fluid queue, one step a minute. `size` nodes do `size` node-minutes of work a
minute; the rest waits:

    served = min(waiting + load, capacity)    cpu = 100 served / capacity

so that in an overload the CPU stays at 100 % and does not tell how much is missing, as on a real
database. New nodes come after `provision` minutes and take their share over `ramp` more; removed
ones are gone when the resize ends. The controller sees readings like those of Cloud Monitoring:
`delay` minutes old, noisy, and sometimes missing. The random draws depend on the trace and the
seed only, so that every rule has the same luck.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from late.autoscaler.decide import Observation, effective_cpu
from late.autoscaler.policy import Policy
from late.autoscaler.simulation import baselines as rules
from late.autoscaler.simulation.baselines import Rule
from late.autoscaler.simulation.traces import MINUTE_US, Trace


class Figures(msgspec.Struct, frozen=True):
    """The figures of one run. Shares are of all minutes, except where bursts are left out."""

    within: float
    """Share of minutes with CPU within 10 points of the target, bursts left out; `effective_cpu`
    if the policy has a target for the total CPU."""
    hot: float
    """Share of minutes with CPU above 90 %."""
    wait_max_s: float
    """The longest wait: the work in the queue, at the rate of that minute."""
    steps: int
    turns: int
    """Pairs of opposite steps, the second within its cool-down."""
    cost_peak: float
    """Node-minutes, relative to the size of the peak for the whole time."""
    cost_clairvoyant: float
    """Node-minutes, relative to the least size for the target at every minute."""
    refused: int
    """Resizes that failed."""


class Run(msgspec.Struct, frozen=True):
    """One run, minute by minute."""

    name: str
    size: tuple[int, ...]
    cpu: tuple[float, ...]
    waiting: tuple[float, ...]
    figures: Figures
    by_rule: dict[str, int] = {}
    """The number of steps by each rule; only for `late`."""


class _Database:
    """The database: its granted size, the capacity that works already, and the work that waits."""

    def __init__(self, size: int, trace: Trace, node: int) -> None:
        self.size, self.waiting = size, 0.0
        self._capacity = float(size)
        self._world, self._node = trace.world, node
        self._pending: tuple[int, int] | None = None

    @property
    def busy(self) -> bool:
        return self._pending is not None

    def resize(self, size: int, minute: int) -> None:
        self._pending = (minute + self._world.provision, size)

    def work(self, minute: int, load: float) -> float:
        if self._pending is not None and minute >= self._pending[0]:
            self.size, self._pending = self._pending[1], None
        if self._capacity > self.size:
            self._capacity = float(self.size)
        # Each minute adds one part in `ramp` of the capacity that is still missing.
        self._capacity += (self.size - self._capacity) / max(1, self._world.ramp)
        capacity = self._capacity / self._node
        served = min(self.waiting + load, capacity)
        self.waiting += load - served
        return 100 * served / capacity

    def total(self, cpu: float, low: float) -> float:
        """Return the CPU of all priorities in the last minute worked."""
        return min(100.0, cpu + 100 * low * self._node / self._capacity)


def _luck(trace: Trace, seed: int) -> tuple[list[float], list[bool], list[bool]]:
    """Draw for each minute the factor of the reading, if it is missing, and if a resize is
    refused."""
    rng, world = random.Random(seed), trace.world
    noise, missing, refused, gap = [], [], [], 0
    for _ in trace.load:
        if gap == 0 and rng.random() < world.gap:
            gap = world.gap_length
        noise.append(max(0.0, rng.gauss(1, world.noise)))
        missing.append(gap > 0)
        refused.append(rng.random() < world.failure)
        gap = max(0, gap - 1)
    return noise, missing, refused


def simulate(trace: Trace, rule: Rule, policy: Policy, *, name: str, seed: int = 7) -> Run:
    """Run one rule on one trace; `policy` gives target, bounds and the cool-downs of `turns`."""
    noise, missing, refused = _luck(trace, seed)
    lows = trace.low or (0.0,) * len(trace.load)
    start = rules.clairvoyant(policy, trace.load[0], lows[0])
    database = _Database(start, trace, policy.node)
    sizes, cpus, totals, waits = [], [], [], []
    steps: list[tuple[int, int]] = []
    failed, newest = 0, -1
    for minute, load in enumerate(trace.load):
        cpus.append(database.work(minute, load))
        totals.append(database.total(cpus[-1], lows[minute]))
        sizes.append(database.size)
        waits.append(database.waiting)
        at = minute - trace.world.delay
        if at >= 0 and not missing[at]:
            newest = at
        if newest < 0 or database.busy:
            continue
        now_us = trace.start_us + (minute + 1) * MINUTE_US
        # A controller without a new reading still sees the last one, and how old it is.
        reading = min(100.0, cpus[newest] * noise[newest])
        at_us = trace.start_us + (newest + 1) * MINUTE_US
        total = min(100.0, totals[newest] * noise[newest])
        seen = Observation(
            database.size, at_us, reading, measured_size=sizes[newest], cpu_total=total
        )
        wanted = rule.want(seen, now_us)
        if wanted == database.size:
            continue
        if refused[minute]:
            failed += 1
            continue
        steps.append((minute, wanted - database.size))
        database.resize(wanted, minute)
        rule.applied(wanted, now_us)
    best = [rules.clairvoyant(policy, *each) for each in zip(trace.load, lows, strict=True)]
    governs = [effective_cpu(policy, *each) for each in zip(cpus, totals, strict=True)]
    figures = _judge(trace, policy, sizes, cpus, governs, waits, steps, best, failed)
    return Run(name, tuple(sizes), tuple(cpus), tuple(waits), figures)


def _judge(
    trace: Trace,
    policy: Policy,
    sizes: Sequence[int],
    cpus: Sequence[float],
    governs: Sequence[float],
    waits: Sequence[float],
    steps: Sequence[tuple[int, int]],
    best: Sequence[int],
    failed: int,
) -> Figures:
    in_burst = [False] * len(cpus)
    for first, until in trace.bursts:
        in_burst[first:until] = [True] * (min(until, len(cpus)) - first)
    calm = [cpu for cpu, burst in zip(governs, in_burst, strict=True) if not burst]
    turns = 0
    for (before, old), (after, new) in pairwise(steps):
        cooldown_s = policy.up_cooldown_s if new > 0 else policy.down_cooldown_s
        turns += old * new < 0 and (after - before) * 60 < cooldown_s
    return Figures(
        within=sum(abs(cpu - policy.target) <= 10 for cpu in calm) / len(calm),
        hot=sum(cpu > 90 for cpu in cpus) / len(cpus),
        wait_max_s=max(w * 60 * policy.node / s for w, s in zip(waits, sizes, strict=True)),
        steps=len(steps),
        turns=turns,
        cost_peak=sum(sizes) / (max(best) * len(sizes)),
        cost_clairvoyant=sum(sizes) / sum(best),
        refused=failed,
    )


def compare(trace: Trace, policy: Policy, *, seed: int = 7) -> list[Run]:
    """Run the policy, then the rules of the open-source autoscalers, on the same trace and luck."""
    others = {"stepwise": rules.stepwise, "linear": rules.linear, "direct": rules.direct}
    ours = rules.LatePolicy(policy)
    run = simulate(trace, ours, policy, name="late", seed=seed)
    runs = [msgspec.structs.replace(run, by_rule=dict(ours.steps.most_common()))]
    for name, suggest in others.items():
        rule = rules.Baseline(policy, suggest)
        runs.append(simulate(trace, rule, policy, name=name, seed=seed))
    return runs


SHIPPED_POLICY = Policy(min=3, max=100)
"""The default policy for the shipped traces."""
