"""The settings that operators change, carried into a running worker: recurring tasks,
the settings of queues and targets, and the widths of lanes.

The control plane is synchronous and off the path of a task, so it is read in a thread. Each
heartbeat brings the version of all settings (`Membership.settings`). They are read when it has
changed, and every two seconds while no heartbeat tells it: the store cannot, or the database is
away. When they cannot be read, the worker goes on with the last settings it knew.

While a lane drains, two kinds of worker look more often: the maintainer of a group (one worker for
each group at most), because it writes what the others wait for, and workers that hold keys back.
They begin at once, and each look that finds nothing new doubles the pause, up to the pace of the
others: a transaction that is open for an hour costs the database no more than an idle fleet.

This is no `BackgroundJob`, because its pauses follow what it finds.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from late.concurrency import in_thread
from late.errors import ConfigError, LateError
from late.observability import repeats

if TYPE_CHECKING:
    from late.control import Control
    from late.control.queue_settings import Live
    from late.model.lanes import Layout
    from late.model.replay import Replay
    from late.model.task import Schedule

logger = logging.getLogger("late.settings")

EVERY_S = 2.0
"""The pause between two reads while no heartbeat tells of a change. By then, or by the next
heartbeat, a change by an operator or a deploy is seen."""
_OTHER_RATE = (
    "queue %s has %s, and rate_limit= in the code is %g tasks a second: the queue's settings count;"
    " for that of the code run `late queue set %s rate=%g`"
)
_DOUBLE = (
    "schedule %r runs its task at the times of the schedule %r, which is not in this app: give it"
    " the name of that one, or remove that one with `late schedule remove`"
)
DRAINING_S = 0.25
"""The shortest pause between two looks at a lane that was resized."""
_EARLY_S = 0.001
"""A loop may run a timer a little early. The rest of a pause below this is no pause of its own."""
T = TypeVar("T")


class ReplayFollower(Protocol):
    """It may lack the replays of groups that were reset."""

    @property
    def lacks_replays(self) -> bool: ...

    def follow_replays(self, replays: Mapping[str, Replay]) -> None: ...


class SettingsSync:
    """See the module. `open` once, then `run` until cancelled.

    Args:
        control: returns the `Control` to read; it is called in a thread.
        replays: read only when it lacks some.
        on_schedules: None where this worker fires none.
        is_maintainer: whether this worker goes on with what a resize has begun, for all;
            several may.
        waits: whether it holds tasks back until another shard has ended older ones of their keys.
    """

    def __init__(
        self,
        control: Callable[[], Control],
        *,
        on_settings: Callable[[Live], None],
        on_lanes: Callable[[Layout], None],
        on_schedules: Callable[[Sequence[Schedule]], None] | None,
        rng: random.Random,
        replays: ReplayFollower | None = None,
        is_maintainer: Callable[[], bool] = lambda: True,
        waits: Callable[[], bool] = lambda: False,
        every_s: float = EVERY_S,
    ) -> None:
        self._open_control = control
        self._on_settings = on_settings
        self._on_lanes = on_lanes
        self._is_maintainer, self._waits = is_maintainer, waits
        self._layout: Layout | None = None
        self._pause_s = DRAINING_S
        self._looked_at = -math.inf
        self._waited = False
        self._hurried = asyncio.Event()
        self._silence: asyncio.Timeout | None = None
        """The wait for the next read."""
        self._version: str | None = None
        """The version that the last heartbeat told, and when."""
        self._told_at = -math.inf
        self._again = False
        self._followed: str | None = None
        """The version that was read, or an older one; None: it is to be read again."""
        self._on_schedules = on_schedules
        self._replays = replays
        self._rng = rng
        self._every_s = every_s
        self._control: Control | None = None

    async def open(
        self,
        declared: Sequence[Schedule],
        groups: Sequence[str],
        rates: Mapping[str, float],
        lanes: Sequence[str] = (),
        name: str | None = None,
    ) -> None:
        """Check that the `groups` and `lanes` exist, declare the code's recurring tasks and the
        first `rates` of its queues, read the settings.

        A group that nobody has created would read the log from a place that nobody chose, and the
        worker of a lane that nobody has created would do nothing. The
        settings come before any work, so that a paused queue stays paused through a restart.

        Raises:
            ConfigError: one of the groups is not registered, or there is no such lane.
            LateError: the database cannot be read, or has settings that this version does not know.
        """
        self._control = control = await in_thread(self._open_control)
        await in_thread(lambda: control.groups.require(groups))
        layout = await in_thread(control.lanes.layout)
        for name in lanes:
            if layout.lane(name) is None:
                known = ", ".join(sorted(lane.name for lane in layout.lanes)) or "none"
                raise ConfigError(f"no lane {name!r}; known: {known}")
        if declared and self._on_schedules is not None:
            await in_thread(lambda: control.schedules.sync(declared, by=name))
            for pair in await in_thread(lambda: control.schedules.doubles(declared)):
                logger.warning(_DOUBLE, *pair)
        if rates:
            others = await in_thread(lambda: control.queues.first_rates(rates))
            for name, rate in others.items():
                kept = "no rate" if rate is None else f"rate={rate:g}"
                logger.warning(_OTHER_RATE, name, kept, rates[name], name, rates[name])
        self._on_settings(await in_thread(control.queues.live))
        self._lanes(layout)

    async def run(self) -> None:
        """Read the settings and pass them on, until cancelled."""
        control = self._control
        assert control is not None, "open comes first"
        while True:
            # Taken before the reads: what changes during them brings another version.
            version, again, self._again = self._version, self._again, False
            known = version is not None and version == self._followed and not again
            if not known or self._told_s() > self._every_s:
                self._followed = version if await self._read(control) else None
            await self._follow_lanes(control, self._every_s * self._rng.uniform(0.8, 1.2))

    async def _read(self, control: Control) -> bool:
        """Read all, and pass it on; False if some of it could not be read."""
        known = True
        if self._on_schedules is not None:
            known = await _pass_on(control.schedules.all, self._on_schedules, "schedules")
        if not self._draining:
            known &= await self._look(control)
        replays = self._replays
        if replays is not None and replays.lacks_replays:
            known &= await _pass_on(control.groups.replays, replays.follow_replays, "replays")
            known &= not replays.lacks_replays
        return await _pass_on(control.queues.live, self._on_settings, "knobs") and known

    def told(self, version: str | None) -> None:
        """Take in the version of the settings that a heartbeat has brought."""
        if version != self._version:
            self._hurried.set()
        self._version, self._told_at = version, asyncio.get_running_loop().time()
        known = version is not None and version == self._followed
        if known and not self._draining and self._silence is not None:
            # The wait is for a time without a heartbeat, and begins anew with each.
            with suppress(RuntimeError):  # it is over
                self._silence.reschedule(self._told_at + self._every_s + _EARLY_S)

    def read_again(self) -> None:
        """Read all soon, whatever heartbeats tell: a new core knows no schedules."""
        self._again = True
        self._hurried.set()

    def _told_s(self) -> float:
        return asyncio.get_running_loop().time() - self._told_at

    def hurry(self) -> None:
        """Look soon, as a key begins to wait; unless some waited at the last look already."""
        if not self._waited:
            self._hurried.set()

    async def _follow_lanes(self, control: Control, for_s: float) -> None:
        """Wait for `for_s`, and look at the lanes meanwhile if one drains. If none does, wait no
        longer than until there is news, and look then."""
        loop = asyncio.get_running_loop()
        until = loop.time() + for_s
        while (left_s := until - loop.time()) > _EARLY_S:
            news = await self._pause(left_s)
            if self._draining and self._is_maintainer():
                await _pass_on(control.lanes.advance, lambda _: None, "lanes")
            if self._draining or news:
                await self._look(control)
            if not self._draining:
                return

    async def _look(self, control: Control) -> bool:
        known = await _pass_on(control.lanes.layout, self._lanes, "lanes")
        self._looked_at = asyncio.get_running_loop().time()
        return known

    async def _pause(self, left_s: float) -> bool:
        """Wait until the next look at the lanes, `left_s` at most; True: there is news."""
        loop = asyncio.get_running_loop()
        self._waited = self._waits()
        quick = self._draining and (self._waited or self._is_maintainer())
        # What would be left over is no pause of its own: there would be two looks for one.
        pause_s = self._pause_s if quick and 2 * self._pause_s < left_s else left_s
        try:
            async with asyncio.timeout(pause_s) as self._silence:
                await self._hurried.wait()
        except TimeoutError:
            self._pause_s = min(2 * self._pause_s, self._every_s)
        else:
            self._pause_s = DRAINING_S
            # Keys that come and go must not make it more than that either.
            await asyncio.sleep(self._looked_at + DRAINING_S - loop.time())
        # Not before: a key that begins to wait during a look may come too late for it.
        news = self._hurried.is_set()
        self._hurried.clear()
        return news

    @property
    def _draining(self) -> bool:
        return self._layout is not None and bool(self._layout.extents)

    def _lanes(self, layout: Layout) -> None:
        if layout != self._layout:
            self._pause_s = DRAINING_S
        self._layout = layout
        self._on_lanes(layout)


async def _pass_on(read: Callable[[], T], tell: Callable[[T], None], what: str) -> bool:
    try:
        found = await in_thread(read)
    except LateError as error:
        repeats.default.log(logger, "%s could not be read: %s", what, error, kind=what)
        return False
    tell(found)
    return True
