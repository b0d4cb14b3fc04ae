"""`late report live`: a day that is added up from a growing lake is that of the batch report."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from late_spark import command_live, lake_files, session
from late_spark.command_live import Live
from late_spark.commands import Asked
from late_spark.export import export
from late_spark.place import Source
from pyspark.sql import SparkSession

from late.errors import ConfigError
from tests.spark import kit
from tests.unit.cli_kit import Cli, cli

__all__ = ["cli"]

PRICES = """
version: 1
name: shop
currency: USD
time_zone: Europe/Berlin
prices:
- {line: nodes, unit: node_hour, price: "0.7", quantity: 3,
   drivers: {tasks: 40, writes: 20, idle: 20, retries: 20}}
"""
DAY = "2026-09-21"
MIDNIGHT_US = 1_790_028_000_000_000
"""The end of that day in Berlin: 22:00 UTC."""


def asked(lake: str = "lake", day: str = DAY) -> Asked:
    found = Asked(source=Source(lake=Path(lake)), from_="", to="", prices=Path("prices.yaml"),
                  out=Path("live"))  # fmt: skip
    return command_live.of_day(found, day)


def rows(path: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(Path(path).read_text())["rows"]
    return found


def test_a_stream_in_several_batches_is_the_batch_report(
    cli: Cli, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "start", lambda **_: spark)
    Path("prices.yaml").write_text(PRICES)
    command = ("report", "live", "--lake", "lake", "--prices", "prices.yaml", "--day", DAY,
               "--out", "live")  # fmt: skip
    seq = 0

    def work(*at_us: int | None) -> None:
        nonlocal seq
        for at in at_us:
            seq += 1
            usage = [kit.done(7 * seq, queue=f"q{seq % 3}", tenant=f"t{seq % 2}"),
                     kit.done(seq, queue="r", outcome="retried", retries=seq)]  # fmt: skip
            kit.write(cli.url, [kit.settled(seq, usage, at_us=at, shard=shard) for shard in (0, 5)])
        export(cli.url, Path("lake"))

    # Given a first batch
    work(None, None)
    ended = cli(*command)
    assert ended.code == 0, ended.err
    first = rows("live/live.json")
    # When there is nothing new, nothing changes
    assert cli(*command).code == 0
    assert rows("live/live.json") == first
    # When files are put together that were read in part, and the day ends in the last batch
    work(None, None)
    with monkeypatch.context() as patch:
        patch.setattr(lake_files, "COMPACT_FILES", 1)
        work(None, MIDNIGHT_US - 1, MIDNIGHT_US, MIDNIGHT_US + 1)
    assert len(list(Path("lake").rglob("*.parquet"))) > 1
    ended = cli(*command, "--json")
    assert ended.code == 0, ended.err
    # Then it is the batch report, to the last digit
    batch = cli("report", "cost", "--from", DAY, "--to", "2026-09-22", "--by", "owner,queue",
                "--lake", "lake", "--prices", "prices.yaml", "--out", "cost", "--json")  # fmt: skip
    assert batch.code == 0, batch.err
    assert rows("live/live.json") == batch.json["rows"] == ended.json["rows"]
    assert first != batch.json["rows"]
    # When Spark gives the last batch a second time, it is known
    live = Live(asked(), "owner,queue")
    state = json.loads(Path("live/_stream/state.json").read_text())
    assert state["batch"] == 1
    live.add(spark.createDataFrame([], "seq long"), 1)
    assert json.loads(Path("live/_stream/state.json").read_text()) == state
    # And the folder is of this day alone
    with pytest.raises(ConfigError, match=r"--out live has 2026-09-21 .* choose another name"):
        Live(asked(day="2026-09-22"), "owner")


def test_at_midnight_it_goes_on_with_the_new_day(
    cli: Cli, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given work of two days, in a lake that has the first one's
    monkeypatch.setattr(session, "start", lambda **_: spark)
    monkeypatch.setattr(command_live, "_LOOK_S", 0.05)
    Path("prices.yaml").write_text(PRICES)
    kit.write(cli.url, [kit.settled(1, [kit.done(7)], at_us=MIDNIGHT_US - 2)])
    export(cli.url, Path("lake"))
    live, first, over = Path("live/live.json"), Path(f"live/{DAY}.json"), []

    class Ended(Exception):
        """The process is ended."""

    def now(zone: ZoneInfo) -> datetime:
        """Show the minute before midnight until the first day's work is in its file."""
        if not over:
            if live.exists() and rows(str(live)):
                # What an export brings in the last moment is in it too.
                kit.write(cli.url, [kit.settled(2, [kit.done(4)], at_us=MIDNIGHT_US - 1),
                                    kit.settled(3, [kit.done(5)], at_us=MIDNIGHT_US)])  # fmt: skip
                export(cli.url, Path("lake"))
                over.append(True)
            else:
                return datetime(2026, 9, 21, 23, 59, tzinfo=zone)
        if first.exists() and live.exists() and rows(str(live)):
            raise Ended
        return datetime(2026, 9, 22, tzinfo=zone)

    # When midnight passes
    plain = replace(asked(), from_="", to="")
    with pytest.raises(Ended):
        command_live.follow(plain, "queue", 0.1, now)
    # Then each day has its own work, and the next start goes on with the second
    assert [row["tasks"] for row in rows(str(first))] == [11]
    assert [row["tasks"] for row in rows(str(live))] == [5]
    assert command_live._begun(Path("live")) == "2026-09-22"
    assert not Path("live/_ended").exists()


def test_a_lake_that_was_made_anew_is_refused(tmp_path: Path) -> None:
    from late_spark.lake_stream import LakeStreamReader

    url = next_url(tmp_path)
    kit.write(url, [kit.settled(1, [kit.done(1)])])
    export(url, tmp_path / "lake")
    reader = LakeStreamReader(str(tmp_path / "lake"), 0, 2**60)
    assert reader.latestOffset({}, None) == {"0/default": 1}
    with pytest.raises(ConfigError, match="it was made anew, so begin in another folder"):
        reader.latestOffset({"0/default": 2}, None)
    with pytest.raises(ConfigError, match="is no lake: late lake export"):
        LakeStreamReader(str(tmp_path / "none"), 0, 1).latestOffset({}, None)


def next_url(place: Path) -> str:
    from tests.conformance.backends import BACKENDS

    return next(each for each in BACKENDS if not each.network).create(place)
