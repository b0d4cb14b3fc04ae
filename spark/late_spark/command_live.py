"""`late report live`: the cost of a day while it runs, from the lake, with Structured Streaming.

The folder has `live.json`, for people and programs, and `_stream`, from which the next start goes
on: Spark's checkpoint, and the work that was added up with the number of its last batch. After a
crash Spark may give a batch a second time. Its number is known then, and it is passed over.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec

from late.errors import ConfigError
from late_spark import (
    calendar,
    commands,
    cost,
    drivers,
    lake_stream,
    owners,
    pricebook,
    session,
    values,
)
from late_spark.allocation import Key
from late_spark.commands import Asked
from late_spark.cost import CostReport
from late_spark.drivers import Used
from late_spark.relation import OnSpark
from late_spark.spark_errors import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FILE = "live.json"
STATE = "_stream"
_ENDED = "_ended"
"""The state of a day that is over, on its way out."""
_LOOK_S = 1.0
_DAY = re.compile(r"\d{4}-\d\d-\d\d\.json")

Now = Callable[[ZoneInfo], datetime]
"""The time of a zone."""


class State(msgspec.Struct, frozen=True):
    """The work of a day so far."""

    day: str
    time_zone: str
    lake: str
    batch: int = -1
    """The last batch that is in it."""
    used: tuple[dict[str, Any], ...] = ()


def today(asked: Asked, now: Now = datetime.now) -> str:
    """Return the local day that runs now."""
    book = pricebook.load(asked.prices)
    return str(now(calendar.zone(asked.tz or book.time_zone, "--tz")).date())


def of_day(asked: Asked, day: str) -> Asked:
    """Return the question of a local day.

    Raises:
        ConfigError: it is no day.
    """
    try:
        first = date.fromisoformat(day)
    except ValueError:
        raise ConfigError(f"--day {day[:64]!r} is no day such as 2026-10-01") from None
    return replace(asked, from_=str(first), to=str(first + timedelta(days=1)))


@explained()
def follow(asked: Asked, by: str, every_s: float, now: Now = datetime.now) -> CostReport:
    """Do as `run` for the day that runs, and go on with the next one at midnight, until the process
    is ended. The day in the folder comes first.

    At midnight the lake is looked at once more, and `live.json` becomes that of the day's name.

    Raises:
        ConfigError: bad input, or the folder is of another lake.
    """
    spark = session.start()
    while True:
        day = _begun(asked.out) or today(asked, now)
        live = Live(of_day(asked, day), by)
        query = live.start(spark, every_s)
        try:
            while today(asked, now) <= day:
                # It takes parts of a second, too, whatever its annotation says.
                if query.awaitTermination(_LOOK_S):  # type: ignore[arg-type]
                    return live.publish()
        finally:
            query.stop()
        live.start(spark, None).awaitTermination()
        live.publish()
        live.end()


@explained()
def run(asked: Asked, by: str, *, every_s: float | None = None) -> CostReport:
    """Bring the cost of the day in `asked` up to the end of its lake, and write it.

    Args:
        every_s: go on and look at the lake so often, until the process is ended; None looks once.

    Raises:
        ConfigError: bad input, or the folder is of another day or lake.
    """
    live = Live(asked, by)
    spark = session.start()
    query = live.start(spark, every_s)
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return live.publish()


class Live:
    """The day that is added up, and its folder."""

    def __init__(self, asked: Asked, by: str) -> None:
        self._asked = asked
        self._by = cost.dimensions(by)
        self._book, self._days, self._billed, _ = commands.paid(asked)
        folder = asked.source.lake
        if folder is None:
            raise ConfigError("late report live reads a lake: give --lake DIR")
        self._lake = str(folder.absolute())
        self._place = asked.out / STATE
        self._adding = Lock()
        self._state = self._opened()

    def start(self, spark: SparkSession, every_s: float | None) -> StreamingQuery:
        """Start the query behind the last batch of the folder."""
        spark.dataSource.register(lake_stream.LakeSource)
        reader = spark.readStream.format("late_lake").option("folder", self._lake)
        reader = reader.option("from_us", self._days.from_us).option("to_us", self._days.to_us)
        writer = reader.load().writeStream.foreachBatch(self.add)
        writer = writer.option("checkpointLocation", f"file://{self._place.absolute()}/checkpoint")
        if every_s is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{every_s:g} seconds").start()

    def add(self, rows: DataFrame, batch: int) -> None:
        """Add the work of a batch, once, and write the cost."""
        with self._adding:  # A query that was stopped may still be here when the next one comes.
            if batch <= self._state.batch:
                return
            without = set() if "tenant" in self._by else {"tenant"}
            more = drivers.collect(drivers.daily(OnSpark(rows), self._days, without))
            used = tuple(map(_plain, merged([*_used(self._state), *more])))
            self._keep(msgspec.structs.replace(self._state, batch=batch, used=used))
            self.publish()

    def end(self) -> None:
        """Keep the cost of the day under its name, and make room for the next one."""
        out = self._asked.out
        (out / FILE).replace(out / f"{self._asked.from_}.json")
        self._place.replace(out / _ENDED)
        shutil.rmtree(out / _ENDED)

    def publish(self) -> CostReport:
        """Write the cost of the work so far, by the formulas of the batch report."""
        asked, used = self._asked, merged(_used(self._state))
        if asked.owners is not None:
            used = _owned(used, asked.owners)
        report = cost.report(
            self._billed, used, self._days, title=f"Cost of {asked.from_}: {self._book.name}",
            currency=self._book.currency, by=self._by,
            assumptions=list(commands.assumed(asked, self._book)),
        )  # fmt: skip
        found = {**values.cost(report), "batch": self._state.batch}
        _write(asked.out / FILE, json.dumps(found, indent=2).encode() + b"\n")
        return report

    def _opened(self) -> State:
        """Read the state, or begin one."""
        new = State(self._asked.from_, self._days.tz.key, self._lake)
        path, out = self._place / "state.json", self._asked.out
        shutil.rmtree(out / _ENDED, ignore_errors=True)
        if not path.exists():
            if out.exists() and not all(_DAY.fullmatch(each.name) for each in out.iterdir()):
                raise ConfigError(f"--out {out} exists and is no live report: choose another name")
            self._keep(new)
            return new
        found = _read(path)
        if (found.day, found.time_zone, found.lake) != (new.day, new.time_zone, new.lake):
            raise ConfigError(
                f"--out {out} has {found.day} ({found.time_zone}) of the lake {found.lake}: choose"
                " another name"
            )
        return found

    def _keep(self, state: State) -> None:
        self._place.mkdir(parents=True, exist_ok=True)
        _write(self._place / "state.json", msgspec.json.encode(state))
        self._state = state


def _begun(out: Path) -> str | None:
    """Return the day that the folder has; None if it has none."""
    path = out / STATE / "state.json"
    return _read(path).day if path.exists() else None


def _read(path: Path) -> State:
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (OSError, msgspec.MsgspecError):
        raise ConfigError(f"{path} cannot be read: begin in another folder") from None


def merged(rows: Iterable[Used]) -> list[Used]:
    """Add up the rows of each day and key, ascending."""
    found: dict[tuple[date, Key], Used] = {}
    for row in rows:
        at = row.day, row.key
        found[at] = drivers.added(found[at], row) if at in found else row
    return [found[at] for at in sorted(found)]


def _owned(rows: Iterable[Used], path: Path) -> list[Used]:
    owner_of = owners.load(path)
    return merged(
        replace(
            row, key=row.key._replace(owner=owner_of(row.key.queue, row.key.name, row.key.owner))
        )
        for row in rows
    )


def _plain(row: Used) -> dict[str, Any]:
    numbers = {name: getattr(row, name) for name in Used.__slots__[2:]}
    return {"day": str(row.day), "key": list(row.key), **numbers}


def _used(state: State) -> list[Used]:
    return [
        Used(**{**row, "day": date.fromisoformat(row["day"]), "key": Key(*row["key"])})
        for row in state.used
    ]


def _write(path: Path, content: bytes) -> None:
    """Write a file whole, or leave the one that is there."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    draft.replace(path)
