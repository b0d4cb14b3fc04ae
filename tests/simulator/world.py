"""One simulated world: lives what its plan says, heals it, lets it finish, and judges how it ends.

What must hold at every step is in `truth`. At the end, when all is healed:

- E1 every committed task is final in every group, and every schedule has come to the present;
- E2 nothing is in the log but what was committed, ticked, or added by a handler;
- E3 no task was started more often than failures, deferrals and changes of its owner explain, and
  not once too often where nothing went wrong;
- E4 every shard has an owner;
- E5 maintenance has taken the whole log, no timer, open task or unique key is left;
- E11 a shard's owner serves its lane (`lanes`);
- E9, E10 workflows have gone on as far as they may (`workflows`);
- E7 a schedule that catches up has had each of its ticks, or the last of more than it catches up.

E6, that the same seed gives the same trace, is the caller's to compare.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import random
from bisect import bisect_left

import msgspec

from late.model.queue_settings import QueueSettings
from late.model.task import Schedule, TaskId
from late.tailer.membership import SILENCE_UNKNOWN_S
from late.tailer.placement import announced, waits
from tests.simulator import lanes
from tests.simulator.background import Patience
from tests.simulator.budget import Budgets
from tests.simulator.database import Database
from tests.simulator.jumps import Jump, JumpingClock
from tests.simulator.logs import CockroachLog, Log, PostgresLog, SpannerLog, SqliteLog
from tests.simulator.loop import Process, SimLoop, bury
from tests.simulator.network import Network, NetworkStore
from tests.simulator.orders import Order
from tests.simulator.plan import Booking, Fault, Plan, dues_us
from tests.simulator.process import SimWorker
from tests.simulator.resets import Reset, reset
from tests.simulator.truth import Broken, Witness
from tests.simulator.workflows import Flow

FINISH_S = 120.0
"""Once all is healed, and no handler has taken its process down since, everything is over within
this. Those deaths are few (S16), and each costs a lease and a start."""
CALM_SEED = 800_000
"""Of worlds from this one on every second has heartbeats far apart while nothing changes, and
no notice ends such a pause: each is lost."""
ONE_WRITER = 5
"""So many times as long where handlers share transactions: on SQLite there is one at a time, also
of those that take long."""
STANDBY, STANDBY_S = 0.3, 3.0
"""The part of the processes that wait at first for one that leaves, and for how long."""
QUIET_S = 10.0
"""Then nothing happens any more: for the last cursors, and for maintenance."""


class Result(msgspec.Struct, frozen=True):
    """How a world ended."""

    plan: Plan
    error: str | None
    """The invariant that was broken, or None."""
    trace: str
    steps: int
    tasks: int
    starts: int
    virtual_s: float
    """How long it lived, by its own time."""


class World:
    """Lives one plan. `run` once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = SimLoop()
        self._rng = random.Random(plan.seed ^ 0x5EED)
        self.clock = JumpingClock(lambda: self.loop.now_s, plan.ttl_s)
        self.database = Database(
            self._log(), now_us=self.clock.now_us, groups=plan.groups, shards=plan.shards,
            schedules=plan.schedules, window=plan.window,
        )  # fmt: skip
        self.truth = self.database.truth
        self.truth.clock = self.clock
        self.truth.budgets = Budgets(plan.settings)
        sharing = plan.sharing
        self.network = Network(dies=0.0 if sharing is None else sharing.dies)
        self._patience = Patience()
        self._layout = lanes.layout_of(plan.seed, plan.shards)
        self._born = 0
        self._places: list[tuple[Process, SimWorker]] = []
        self._buried: list[Process] = []
        self._born_at: dict[int, list[float]] = {}
        """Of each place, when its processes began: a supervisor waits longer after quick deaths."""
        self._added: set[str] = set()
        """Tasks that producers have committed."""
        self._producing = 0
        """Transactions of producers that are to come to an end, or to be sent again."""
        self._disturbed = False
        """Whether anything has happened that explains a repeat."""

    def _log(self) -> Log:
        if self.plan.profile == "sqlite":
            return SqliteLog()
        if self.plan.profile == "postgres":
            return PostgresLog()
        rng = random.Random(self.plan.seed ^ 0x71E5)
        if self.plan.profile == "cockroach":
            return CockroachLog(self.clock.now_us, rng)
        return SpannerLog(self.clock.now_us, rng)

    def run(self) -> Result:
        """Live it to the end; what was broken is in the result."""
        error: str | None = None
        # All that a world makes is collected at its end: on the way it would be looked at for
        # nothing, again and again.
        collects = gc.isenabled()
        gc.disable()
        try:
            self.loop.run_until_complete(self._live())
        except Exception as broken:  # an error that nothing in `late` has caught is one, too
            error = f"{type(broken).__name__}: {broken}"
        finally:
            asyncio.set_event_loop(None)
            if collects:
                gc.enable()
        processes = [*self._buried, *(process for process, _ in self._places)]
        self._places, self._buried = [], []
        # Errors hold on to frames, and those to all that was alive in them.
        self.loop.errors.clear()
        self.truth.verdicts.clear()
        self.loop.forget()
        bury(processes)
        return Result(
            self.plan,
            error,
            self.database.trace,
            self.loop.steps,
            len(self.truth.records),
            sum(w.starts for each in self.truth.witness.values() for w in each.values()),
            self.loop.now_s,
        )

    async def _live(self) -> None:
        for place in range(self.plan.workers):
            self._places.append(self._birth(place))
        for booking in self.plan.bookings:
            self.loop.outside(self._begin, booking, delay_s=booking.at_s)
        for order in self.plan.orders:
            if not order.together:
                self.loop.outside(self._order, order, delay_s=order.at_s)
        for flow in self.plan.flows:
            self.loop.outside(self._flow, flow, delay_s=flow.at_s)
        for asked in self.plan.resets:
            self.loop.outside(self._reset, asked, delay_s=asked.at_s)
        for fault in self.plan.faults:
            self.loop.outside(self._strike, fault, delay_s=fault.at_s)
        for jump in self.plan.jumps:
            self.loop.outside(self._jump, jump, delay_s=jump.at_s)
        await self._pass(self.plan.ends_s)
        self._heal()
        await self._finish()
        await self._pass(QUIET_S)
        await self._judge_owners()
        self._judge()

    async def _pass(self, seconds: float) -> None:
        """Let time pass; the first error ends the world."""
        end_s = self.loop.now_s + seconds
        while self.loop.now_s < end_s:
            await asyncio.sleep(min(0.5, end_s - self.loop.now_s))
            for _, worker in self._places:
                most = max(
                    (core.state.unsettled for core in worker.scheduler.cores.values()), default=0
                )
                if most > self.plan.window:
                    raise Broken(f"S5: {most} records are read and not settled")
            self._patience.judge(self._places)
            for error in (*self.truth.verdicts, *self.loop.errors):
                raise error

    async def _finish(self) -> None:
        """Until schedules have caught up with the present, and then until all is over."""
        now_us, free_us = self.clock.now_us(), self.clock.elapsed_us()
        while late := [s.name for s in self.database.recurring() if _due(s) <= now_us]:
            if self._stuck_since(free_us):
                raise Broken(f"E1: {late[0]} stands still")
            await self._pass(0.5)
        self.database.no_more_ticks()
        last_us = self.clock.elapsed_us() + self.clock.back_us
        while self._producing or any(self.truth.unsettled.values()):
            # What was due before the clock was set back is due by as much later, and only that.
            if self.clock.elapsed_us() <= last_us and self.database.waits_for_time():
                free_us = self.clock.elapsed_us()
            if self._stuck_since(free_us):
                left = sorted(t for each in self.truth.unsettled.values() for t in each)
                raise Broken(f"E1: {len(left)} tasks are not over, {left[:1]} for one")
            await self._pass(0.5)

    def _stuck_since(self, free_us: int) -> bool:
        since_us = max(free_us, self.truth.killed_us)
        finish_s = FINISH_S * (ONE_WRITER if self.plan.sharing else 1)
        return self.clock.elapsed_us() > since_us + round(finish_s * 1e6)

    # ------------------------------------------------------------------ the fleet

    def _birth(self, place: int) -> tuple[Process, SimWorker]:
        """A new process in one place of the fleet."""
        self._born += 1
        self._born_at.setdefault(place, []).append(self.loop.now_s)
        rng = random.Random(self.plan.seed * 1_000 + self._born)
        process = Process(
            f"w{self._born}", offset_s=rng.uniform(0, 1e4), rate=1 + rng.uniform(-2e-4, 2e-4)
        )
        version = self._version(place)
        store = NetworkStore(self.loop, self.database, self.network, process.name, rng)
        worker = SimWorker(
            self.loop,
            process,
            store,
            groups=self.plan.groups,
            ttl_s=self.plan.ttl_s,
            window=self.plan.window,
            version=version,
            layout=self._layout,
            standby_s=STANDBY_S if waits(version) else 0.0,
            queue_settings=self.truth.budgets.settings,
            rng=rng,
            calm=self.plan.seed >= CALM_SEED and self.plan.seed % 2 == 1,
            die=lambda: self._kill(place, process),
            shares=None if self.plan.sharing is None else self.plan.profile,
        )
        self.truth.budgets.born(process.name, self.clock.longest_us())
        self.loop.start(process, worker.run)
        return process, worker

    def _version(self, place: int) -> str:
        """Return the version of the process that was born last."""
        rng = random.Random(self.plan.seed * 1_000 + self._born ^ 0x01DE5)
        if rng.random() < self.plan.older:
            return "1"
        standby = rng.random() < STANDBY
        return announced("2", standby=standby, lanes=lanes.served(self._layout, rng, place))

    def _kill(self, place: int, process: Process) -> None:
        if process.dead:
            return
        self._disturbed = True
        self.loop.kill(process)
        self._buried.append(process)
        quick = sum(self.loop.now_s - born_s < 10.0 for born_s in self._born_at[place])
        delay_s = min(8.0, 0.2 * 2**quick) * self._rng.uniform(0.5, 1.5)
        self.loop.outside(self._rebirth, place, delay_s=delay_s)

    def _rebirth(self, place: int) -> None:
        self._places[place] = self._birth(place)

    def _strike(self, fault: Fault) -> None:
        process, worker = self._places[fault.worker]
        network = self.network
        if process.dead:
            return
        match fault.kind:
            case "kill":
                self._kill(fault.worker, process)
            case "pause":
                self._disturbed = True
                self.loop.pause(process)
                self.loop.outside(self.loop.resume, process, delay_s=fault.for_s)
            case "restart":
                if not process.paused:
                    self.loop.start(process, lambda: self._restart(fault.worker, process, worker))
            case "cut":
                self._disturbed = True
                network.cut |= {process.name}
                self.loop.outside(self._join, process.name, delay_s=fault.for_s)
            case "deaf":
                self._disturbed = True
                network.deaf |= {process.name}
                self.loop.outside(self._join, process.name, delay_s=fault.for_s)
            case "lose" | "repeat" | "refuse" | "abort" | "slow" | "busy" | "storm":
                self._weather(fault)

    def _weather(self, fault: Fault) -> None:
        """The network is bad for everybody, for a while."""
        field, value = {
            "lose": ("lost", 0.1),
            "repeat": ("twice", 0.2),
            "refuse": ("refused", 0.2),
            "abort": ("aborted", 0.2),
            "slow": ("delay_s", 0.2),
            "busy": ("busy", True),
            "storm": ("storm", True),
        }[fault.kind]
        self._disturbed = self._disturbed or fault.kind != "storm"
        before = getattr(Network(), field)
        setattr(self.network, field, value)
        self.loop.outside(setattr, self.network, field, before, delay_s=fault.for_s)

    def _join(self, name: str) -> None:
        self.network.cut -= {name}
        self.network.deaf -= {name}

    async def _restart(self, place: int, process: Process, worker: SimWorker) -> None:
        """A deploy: a clean stop, and a new process in its place."""
        await worker.stop()
        if not process.dead:
            self.loop.kill(process)
            self._buried.append(process)
            self._rebirth(place)

    # ------------------------------------------------------------------ producers

    def _begin(self, booking: Booking) -> None:
        transaction = self.database.begin()
        self._producing += 1
        self.loop.outside(self._end, booking, transaction, delay_s=booking.for_s)

    def _end(self, booking: Booking, transaction: int) -> None:
        if self.network.busy:  # it waits for the lock, or tries again
            self.loop.outside(self._end, booking, transaction, delay_s=0.1)
            return
        self._producing -= 1
        if booking.commits:
            with_them = [
                order.row
                for order in self.plan.orders
                if order.together and any(t.task_id == order.target for t in booking.tasks)
            ]
            added = self.database.commit(transaction, (*booking.tasks, *with_them))
            self._added.update(added)
        else:
            self.database.abort(transaction)
        if booking.again:
            self._producing += 1
            self.loop.outside(self._ask_again, booking, delay_s=self._rng.uniform(0.1, 3.0))

    def _flow(self, flow: Flow) -> None:
        """A producer commits a workflow, and somebody cancels it later."""
        database = self.database
        self._added.update(database.commit(database.begin(), database.flows.committed(flow)))
        for at_s, task_id in flow.cancels:
            self._producing += 1
            self.loop.outside(self._cancel, task_id, delay_s=max(0.0, at_s - self.loop.now_s))

    def _cancel(self, task_id: TaskId) -> None:
        self._producing -= 1
        row = self.database.flows.cancel(task_id)
        self._added.update(self.database.commit(self.database.begin(), [row]))

    def _order(self, order: Order) -> None:
        """Somebody asks something of a task that is there."""
        if order.target in self._added:
            self._added.update(self.database.commit(self.database.begin(), [order.row]))

    def _reset(self, asked: Reset) -> None:
        # What the owners were running may run twice, and is not recorded.
        self._disturbed = True
        reset(self.database, asked)

    def _jump(self, jump: Jump) -> None:
        # Forward, leases are over at once: what their owners run may run twice.
        self._disturbed = True
        self.clock.set(jump)

    def _ask_again(self, booking: Booking) -> None:
        """The answer was lost: the same requests again, under the same unique keys."""
        self._producing -= 1
        self._added.update(self.database.commit(self.database.begin(), booking.again))

    # ------------------------------------------------------------------ the end

    def _heal(self) -> None:
        self.network.heal()
        self.network.delay_s = Network().delay_s
        self.truth.budgets.settings = QueueSettings()
        for process, worker in self._places:
            if process.dead:
                continue
            self.loop.start(process, worker.lift_settings)
            if process.paused:
                self.loop.resume(process)

    async def _judge_owners(self) -> None:
        # A shard may be between two owners: one that flapped gets its share when it is steady.
        end_s = self.loop.now_s + 3 * self.plan.ttl_s
        if self.clock.jumped:  # The lease of a dead worker may seem to go on.
            end_s += SILENCE_UNKNOWN_S + 3 * self.plan.ttl_s
        while free := {
            (group, shard_id) for group in self.plan.groups for shard_id in range(self.plan.shards)
        } - {shard for _, worker in self._places for shard in worker.held}:
            if self.loop.now_s > end_s:
                raise Broken("E4: nobody works on {}/{}".format(*min(free)))
            await self._pass(0.5)
        while strays := self._strays():
            if self.loop.now_s > end_s:
                raise Broken(f"E11: {strays[0]} has a shard of a lane that it does not serve")
            await self._pass(0.5)

    def _strays(self) -> list[str]:
        return lanes.strays(self._layout, [(w.version, w.held) for _, w in self._places])

    def _judge(self) -> None:
        truth = self.truth
        for task_id in truth.records.keys() ^ self._added:
            record = truth.records.get(task_id)
            if record is None or not (record.headers or task_id[19] in "9b"):
                raise Broken(f"E2: {task_id} was not committed, or is gone")
        for group, witnesses in truth.witness.items():
            for task_id, witness in witnesses.items():
                if witness.final is None:
                    raise Broken(f"E1: {task_id} is not final in {group}")
                self._judge_starts(group, task_id, witness)
                died = self.plan.faults or self.plan.jumps or self.plan.sharing
                if witness.blamed and not (witness.kills or died):
                    raise Broken(f"E8: {task_id} is blamed in {group}, it was another one")
        self.database.flows.judge_end()
        self._judge_rest()

    def _judge_starts(self, group: str, task_id: str, witness: Witness) -> None:
        extra = witness.starts - witness.failures - witness.deferrals - witness.done
        shard_id = self.truth.records[task_id].shard_id
        takeovers = self.database.journals[group, shard_id].epoch - 1
        if extra > (takeovers if self._disturbed else 0):
            raise Broken(f"E3: {task_id} was started {extra} times too often in {group}")

    def _judge_rest(self) -> None:
        database = self.database
        left = sum(len(rows) for rows in database.log.rows.values())
        if left:
            raise Broken(f"E5: {left} rows are left in the log")
        for shard, journal in database.journals.items():
            if journal.timers or journal.open:
                raise Broken(f"E5: the journal of {shard} is not empty")
        if database.unique:
            raise Broken(f"E5: the key {min(database.unique)} is still taken")
        for schedule in self.plan.schedules:
            fired = self.truth.ticks[schedule.name]
            dues = (due // 1_000_000 for due in dues_us(schedule.rule, schedule.anchor_us))
            oracle = list(itertools.takewhile((fired or [0])[-1].__ge__, dues))
            if schedule.catch_up == "all" and schedule.overlap != "skip":
                # More than that are due at once only after the clock was set far forward.
                starts = self.truth.tick_starts[schedule.name]
                firsts = [*(bisect_left(oracle, start) for start in starts), len(oracle)]
                oracle = [
                    due
                    for first, end in itertools.pairwise(firsts)
                    for due in oracle[max(first, end - schedule.catch_up_max) : end]
                ]
                if fired != oracle:
                    raise Broken(f"E7: {schedule.name} had {len(fired)} of {len(oracle)} ticks")
            elif not set(fired) <= set(oracle):
                raise Broken(f"E7: {schedule.name} had {len(fired)} of {len(oracle)} ticks")


def _due(schedule: Schedule) -> int:
    return schedule.next_due_at_us or 0


def live(seed: int) -> Result:
    """The world of one seed, quietly: its workers warn of every fault. For pools of processes."""
    logging.disable(logging.CRITICAL)
    return World(Plan.draw(seed)).run()
