"""Read the `beat_schedule` of a Celery app as schedules of `late`.

Celery's `crontab` runs on a day that is in its days of the month **and** of the week; cron, and
with it `late`, takes either day if both are restricted. `cron_of` writes a rule that means the same
as Celery's, or says that there is none. See `docs/celery-beat.md`.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import msgspec

from late.app.options import settings
from late.celery.app import Celery
from late.celery.exceptions import NotSupported
from late.celery.router import Router
from late.celery.values import to_json
from late.control import Control
from late.errors import ConfigError, LateError
from late.model.cron import check, every_us, next_due_us

if TYPE_CHECKING:
    from late.app.options import TaskOptions

_MODULES = {"celery.schedules", "late.celery.schedules"}
_SCHEDULERS = {None, "celery.beat:PersistentScheduler", "celery.beat:Scheduler"}
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_OPTIONS_REFUSED = {"countdown", "eta", "headers"}


class Entry(msgspec.Struct, frozen=True):
    """One entry of `beat_schedule`, and what becomes of it."""

    key: str
    """Its key in `beat_schedule`."""
    name: str
    """The name of the schedule: the key, with `-` for what a name cannot have."""
    task: str
    cadence: str
    """Celery's cadence, as Celery shows it."""
    zone: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    rule: str | None = None
    """The rule of `late`; None if there is none."""
    reason: str | None = None
    """Why it stays on Celery; None if it does not."""

    def next_due_us(self) -> int | None:
        """Return its first tick after now, by the clock of this machine; None without a rule."""
        if self.rule is None or self.reason is not None:
            return None
        now = time.time_ns() // 1_000
        return next_due_us(self.rule, self.zone or "UTC", anchor_us=now, after_us=now)


def sides(source: Any, into: Any = None) -> tuple[Any, Any]:
    """Return the app that has the `beat_schedule`, and the one that has the tasks.

    Args:
        source, into: what is named on the command line. A `Router` stands for the apps of its two
            sides, whose modules are imported. Without `into` it is `source`.
    """
    tasks = source if into is None else into
    for each in (source, tasks):
        if isinstance(each, Router):
            each.import_default_modules()
    return (
        source.celery_app if isinstance(source, Router) else source,
        tasks.late if isinstance(tasks, Router) else tasks,
    )


def read(app: Any) -> list[Entry]:
    """Return the entries of a Celery app, or of a `late.celery.Celery`, in their order.

    Raises:
        ConfigError: it is no such app, or it keeps its entries elsewhere, as in a database. What
            its modules raise is passed on.
    """
    if isinstance(app, Celery):
        app.import_default_modules()
    else:
        if not all(hasattr(app, part) for part in ("loader", "finalize", "conf")):
            raise ConfigError(f"a {type(app).__name__} is no app of Celery")
        app.loader.import_default_modules()
        app.finalize(auto=True)
    scheduler = getattr(app.conf, "beat_scheduler", None)
    if scheduler not in _SCHEDULERS:
        raise ConfigError(f"beat_scheduler={scheduler} has entries that are not in beat_schedule")
    local = "UTC" if getattr(app.conf, "enable_utc", True) else ""
    zone = str(app.conf.timezone or local)
    found = app.conf.beat_schedule or {}
    return [_entry(str(key), given, zone) for key, given in found.items()]


def declare(entries: Iterable[Entry], app: Celery) -> list[Entry]:
    """Declare the entries as schedules of the app's `late_app`, as `@app.schedule` does.

    Nothing is written. Overlap is allowed and one missed tick is caught up, as with Celery.

    Returns:
        All entries; those whose task or options cannot be had have their reason.
    """
    return [entry if entry.reason else _declared(entry, app) for entry in entries]


def apply(entries: Iterable[Entry], app: Celery) -> list[str]:
    """Write the declared entries without a reason to the database; workers fire them from then on.

    The first tick is the first one after now, by the database's clock. Called twice, it changes
    nothing. Call it while Celery's beat does not run.

    Returns:
        The names that were written: those that are new or changed.

    Raises:
        StoreError: see `late.control.Control`.
    """
    names = {entry.name for entry in entries if entry.reason is None}
    wanted = [schedule for schedule in app.late_app.schedules if schedule.name in names]
    with Control(app.late_app.url) as control:
        return control.schedules.sync(wanted)


def leave_to_late(service: Any, app: Celery | Router) -> list[str]:
    """Take the entries that `late` fires out of a beat of Celery that starts.

    Args:
        service: the sender of Celery's signal `beat_init`.
        app: the app or the router whose database has the schedules.

    Returns:
        The keys that were taken out: those of which the database has a schedule of the same name
        for the same task, paused or not.

    Raises:
        SystemExit: the database does not answer. Celery passes over other errors of a receiver,
            and both sides would fire.
    """
    try:
        with Control(app.late_app.url) as control:
            owned = {(schedule.name, schedule.task_name) for schedule in control.schedules.all()}
    except LateError as error:
        raise SystemExit(f"late: beat does not start: {error}") from error
    running = service.scheduler.schedule
    taken = [key for key, entry in running.items() if (_name(key), entry.task) in owned]
    for key in taken:
        del running[key]
    return taken


def cron_of(crontab: Any) -> str:
    """Return the cron rule that fires when a `crontab` of Celery does.

    Raises:
        NotSupported: there is none, for days of the month and of the week that both restrict.
    """
    days, weekdays = set(crontab.day_of_month), set(crontab.day_of_week)
    day = _field(days, range(1, 32))
    weekday = _field(weekdays, range(7), _DAYS)
    # Cron requires both days only if one of the two fields begins with a star.
    if not (day.startswith("*") or weekday.startswith("*")):
        weeks = {(number - 1) // 7 + 1 for number in days}
        if days == {n for n in range(1, 32) if (n - 1) // 7 + 1 in weeks}:
            nth = [f"{_DAYS[n]}#{week}" for n in sorted(weekdays) for week in sorted(weeks)]
            day, weekday = "*", ",".join(nth)
        elif 1 in days:
            day = ",".join(["*/31", *_runs(days - {1})])  # `*/31` is the first alone.
        elif 0 in weekdays:
            weekday = ",".join(["*/8", *_runs(weekdays - {0}, _DAYS)])  # `*/8` is Sunday alone.
        else:
            raise NotSupported(f"day_of_month={day} and day_of_week={weekday} together: cron takes"
                               " either; test the day in the task")  # fmt: skip
    minute = _field(set(crontab.minute), range(60))
    hour = _field(set(crontab.hour), range(24))
    month = _field(set(crontab.month_of_year), range(1, 13))
    return f"{minute} {hour} {day} {month} {weekday}"


def _entry(key: str, given: Mapping[str, Any], zone: str) -> Entry:
    cadence = given["schedule"]
    entry = Entry(key, _name(key), str(given["task"]), repr(cadence), zone,
                  given.get("args") or (), given.get("kwargs") or {},
                  given.get("options") or {})  # fmt: skip
    try:
        rule = _rule(cadence, given.get("relative", False))
        if every_us(rule) is None and not zone:
            raise NotSupported("it is in the local time of the machine: set `timezone`")
        check(rule, zone or "UTC")
    except LateError as error:
        return msgspec.structs.replace(entry, reason=str(error))
    return msgspec.structs.replace(entry, rule=rule)


def _rule(cadence: Any, relative: bool) -> str:
    if isinstance(cadence, int | float):
        cadence = timedelta(seconds=cadence)
    kind = type(cadence)
    own = kind.__module__ in _MODULES
    if own and getattr(cadence, "nowfun", None):
        raise NotSupported("nowfun: late has the time of the database")
    if own and kind.__name__ == "crontab":
        return cron_of(cadence)
    if own and kind.__name__ == "schedule":
        relative = relative or cadence.relative
        cadence = cadence.run_every
    if not isinstance(cadence, timedelta):
        raise NotSupported(
            "no schedule follows the sun"
            if own
            else f"{kind.__module__}.{kind.__name__} is a schedule of the project"
        )
    if relative:
        raise NotSupported("relative: an interval counts from its first tick; use crontab")
    return f"every {cadence.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"


def _declared(entry: Entry, app: Celery) -> Entry:
    try:
        task = app.tasks.get(entry.task)
        if task is None:
            raise NotSupported("its task is not registered with late.celery")
        options = task.late_options(entry.options)
        refused = sorted(name for name in _OPTIONS_REFUSED if entry.options.get(name) is not None)
        if refused or isinstance(options["expires"], datetime):
            raise NotSupported(f"options: {', '.join(refused) or 'expires at a fixed time'}")
        task.check(entry.args, entry.kwargs)
        # A copy carries the options of the entry: a schedule takes them from its task.
        registered = copy.copy(app.late_app.tasks[entry.task])
        registered.queue = entry.options.get("queue") or app.queue_of(task)
        asked = cast("TaskOptions", options)
        registered.base = settings(asked, registered.base, registered.codec).options
        every = every_us(str(entry.rule))
        app.late_app.schedule(
            entry.rule if every is None else None,
            every=None if every is None else every / 1_000_000,
            tz=entry.zone or "UTC",
            name=entry.name,
            overlap="allow",
            args={"args": to_json(list(entry.args)), "kwargs": to_json(dict(entry.kwargs))},
        )(registered)
    except TypeError as error:
        return msgspec.structs.replace(entry, reason=f"the arguments do not fit: {error}")
    except LateError as error:
        return msgspec.structs.replace(entry, reason=str(error))
    return entry


def _name(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9._:-]+", "-", key).strip("-")[:128]


def _field(numbers: set[int], most: range, names: Sequence[str] | None = None) -> str:
    """Return the field of cron for `numbers`; names stand for numbers where they are given."""
    ordered = sorted(numbers)
    if ordered == list(most):
        return "*"
    step = ordered[1] - ordered[0] if len(ordered) > 2 else 0
    # cron's weekdays go up to 7, so their steps are other ones.
    if step > 1 and names is None and ordered == list(most)[::step]:
        return f"*/{step}"
    return ",".join(_runs(numbers, names))


def _runs(numbers: set[int], names: Sequence[str] | None = None) -> list[str]:
    """Return the numbers as `3` and `5-9`, ascending."""
    said = [str(n) for n in range(60)] if names is None else names
    starts = sorted(n for n in numbers if n - 1 not in numbers)
    ends = sorted(n for n in numbers if n + 1 not in numbers)
    return [
        said[first] if first == last else f"{said[first]}-{said[last]}"
        for first, last in zip(starts, ends, strict=True)
    ]
