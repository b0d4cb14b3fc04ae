"""`late report capacity`: whether shards, nodes and knobs are enough for a load that grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from late.errors import ConfigError
from late_spark import calendar, capacity, folder, importers, page, place
from late_spark.calendar import Calendar
from late_spark.capacity import Played, Setting, Verdict
from late_spark.commands import Say, quiet
from late_spark.place import Source
from late_spark.spark_errors import explained
from late_spark.tables import csv_rows


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """The changes that a report tries."""

    source: Source
    from_: str
    to: str
    out: Path
    growth: float = 1.0
    knobs: Sequence[str] = ()
    shards: int | None = None
    shard_rate: float = capacity.SHARD_RATE
    nodes: int | None = None
    metrics: Sequence[Path] = ()
    tz: str = "UTC"
    force: bool = False
    say: Say = quiet


@dataclass(frozen=True)
class CapacityReport:
    queues: tuple[Played, ...]
    verdicts: tuple[Verdict, ...]
    chosen: Mapping[str, Setting]
    """The settings that were tried, by queue."""


@explained()
def run(asked: WhatIf) -> CapacityReport:
    """Write the capacity report.

    Raises:
        ConfigError: bad input; nothing was written.
    """
    for what, number in (("--growth", asked.growth), ("--shard-rate", asked.shard_rate),
                         ("--shards", asked.shards), ("--nodes", asked.nodes)):  # fmt: skip
        if number is not None and not 0 < number < 1e9:
            raise ConfigError(f"{what} {number}: expected a number above zero")
    folder.check(asked.out, force=asked.force)
    days = Calendar.of(asked.from_, asked.to, calendar.zone(asked.tz, "--tz"))
    chosen = capacity.settings(asked.knobs)
    metrics = importers.load(asked.metrics)
    databases = capacity.nodes(metrics, days, asked.growth, asked.nodes)
    usage = place.opened(asked.source, days.from_us, days.to_us, asked.say)
    asked.say("adding up the load")
    steps = capacity.collect(capacity.load(usage, days))
    if not steps:
        raise ConfigError(f"no usage from {asked.from_} to {asked.to} in {asked.source.said()}")
    found = CapacityReport(
        tuple(capacity.queues(steps, days, chosen, asked.growth)),
        (*capacity.shards(steps, asked.growth, asked.shards, asked.shard_rate), *databases),
        chosen,
    )
    about: dict[str, object] = {
        "report": "capacity", "from": asked.from_, "to": asked.to, "growth": asked.growth,
        "knobs": list(asked.knobs), "step_s": capacity.STEP_S,
    }  # fmt: skip
    asked.say(f"writing {asked.out}")
    with folder.writing(asked.out, about, force=asked.force) as draft:
        columns, rows = table(found)
        csv_rows(draft / "queues.csv", [each.rstrip(">") for each in columns], rows)
        csv_rows(
            draft / "verdicts.csv", ("subject", "question", "answer", "enough"),
            [(v.subject, v.question, v.answer, _word(v.enough)) for v in found.verdicts],
        )  # fmt: skip
        (draft / "index.html").write_text(html(found, asked), encoding="utf-8")
    return found


def _word(enough: bool | None) -> str:
    return "" if enough is None else "yes" if enough else "no"


def enough(played: Played, setting: Setting | None) -> str:
    """Say if a setting carries the load: `yes`, `with waiting`, `no`; "" if none was tried."""
    if setting is None:
        return ""
    if played.left:
        return "no"
    return "with waiting" if played.backlog_max else "yes"


def table(found: CapacityReport) -> tuple[list[str], list[tuple[str, ...]]]:
    """Columns and rows of the queues."""
    columns = ["queue", "peak tasks/s>", "slots needed>", "tried", "backlog at most>",
               "waits at most, s>", "enough"]  # fmt: skip
    rows: list[tuple[str, ...]] = []
    for each in found.queues:
        setting = found.chosen.get(each.queue)
        tried = [] if setting is None else [
            f"{name} {value:g}"
            for name, value in (("concurrency", setting.concurrency), ("rate", setting.rate))
            if value is not None
        ]  # fmt: skip
        rows.append(
            (each.queue, f"{each.peak_per_s:.2f}", str(each.slots_needed), ", ".join(tried),
             str(each.backlog_max) if tried else "", f"{each.wait_max_s:.0f}" if tried else "",
             enough(each, setting))
        )  # fmt: skip
    return columns, rows


def html(found: CapacityReport, asked: WhatIf) -> str:
    """The page."""
    columns, rows = table(found)
    verdicts = [(v.subject, v.question, v.answer, _word(v.enough)) for v in found.verdicts]
    body = [
        page.heading("Queues and knobs"), page.table(columns, rows),
        page.paragraph(
            f"Loads are means of {capacity.STEP_S} s; bursts within that are not seen. Slots are "
            f"those of which the peak keeps {capacity.BUSY_AT_MOST:.0%} busy."
        ),
        page.heading("Shards and nodes"),
        page.table(("what", "question", "answer", "enough"), verdicts),
    ]  # fmt: skip
    subtitle = f"{asked.from_} to {asked.to}, the recorded load times {asked.growth:g}"
    return page.page("What would be enough", subtitle, body)
