"""The throughput report, on frames small enough to be added up by hand."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from late_spark import session, throughput
from late_spark.export import export
from late_spark.frames import USAGE
from late_spark.throughput import HOUR_US, Limit
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from late.cli.reports import throughput as command
from late.model import histogram
from tests.conformance.backends import BACKENDS
from tests.spark.kit import done, prune, settled, write
from tests.unit.cli_kit import Cli

SQLITE = next(each for each in BACKENDS if not each.network)
MIDNIGHT = datetime(2026, 3, 29, tzinfo=UTC)
T0 = round(MIDNIGHT.timestamp()) * 1_000_000
SECOND = 1_000_000


def hist(*us: int) -> dict[int, int]:
    return dict(histogram.histogram(us))


def row(outcome: str, count: int, *, at_us: int = T0, **more: Any) -> Row:
    attempts = 0 if outcome in ("enqueued", "expired") else count
    given: dict[str, Any] = {
        "settled_at": MIDNIGHT + timedelta(microseconds=at_us - T0), "settled_us": at_us,
        "consumer_group": "default", "shard_id": 0, "seq": 1, "epoch": 1, "worker": "w",
        "queue": "q", "name": "n", "target": "local", "outcome": outcome, "count": count,
        "attempts": attempts, "retries": 0, "busy_us": 0, "waiting_us": 0, "bytes": 0,
        "lateness_us": 0, "waiting_hist": hist(*[0] * attempts), "busy_hist": hist(*[0] * attempts),
        "tenant": None, "owner": None, "delayed": 0, "counts": {},
    }  # fmt: skip
    return Row(**(given | more))


def frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    return spark.createDataFrame(
        [tuple(each[name] for name in USAGE.names) for each in rows], USAGE
    )


def run(spark: SparkSession, rows: Iterable[Row], **more: Any) -> list[Row]:
    given: dict[str, Any] = {"from_us": T0, "to_us": T0 + 24 * HOUR_US} | more
    found = throughput.report(frame(spark, rows), **given)
    # As text: Spark gives moments to Python in the zone of the machine.
    return found.withColumn("at", F.date_format("at", "yyyy-MM-dd HH:mm")).collect()


def test_each_hour_says_what_came_ended_and_failed(spark: SparkSession) -> None:
    later = T0 + HOUR_US
    rows = [
        row("enqueued", 7200, waiting_hist={0: 7200}, target=""),
        row("done", 3600, busy_us=7200 * SECOND, waiting_hist=hist(*range(1, 101)),
            busy_hist=hist(*[5 * SECOND] * 99, 50 * SECOND)),
        row("retried", 4, retries=2, delayed=4, lateness_us=8 * SECOND),
        row("dead", 2), row("discarded", 1), row("interrupted", 5),
        row("expired", 3, at_us=later), row("dead", 1, at_us=later, attempts=0, target=""),
    ]  # fmt: skip
    first, second = run(spark, rows, limits={"q": Limit(4, 2.0), "p": Limit()})
    assert first.at == "2026-03-29 00:00"
    assert (first.queue, first.enqueued, first.done, first.failed, first.retried) == (
        "q", 7200, 3600, 6, 4)  # fmt: skip
    assert (first.dead, first.expired, first.discarded, first.backlog) == (2, 0, 1, 7200 - 3603)
    assert (first.arrivals_per_s, first.ends_per_s) == (2.0, pytest.approx(3603 / 3600))
    assert (first.busy_slots, first.concurrency_used) == (2.0, 0.5)
    assert first.rate_used == pytest.approx(3612 / 3600 / 2)
    assert first.lateness_mean_s == 2.0
    assert (second.enqueued, second.expired, second.dead, second.failed) == (0, 3, 1, 0)
    assert (second.backlog, second.lateness_mean_s) == (7200 - 3603 - 4, None)


def test_percentiles_are_those_of_all_histograms_together(spark: SparkSession) -> None:
    times = [100, 3_000, 40_000, 500_000, 6_000_000]
    rows = [row("done", 20, waiting_hist=hist(*[us] * 20), busy_hist=hist(us)) for us in times]
    [found] = run(spark, rows)
    near = pytest.approx
    error = histogram.ERROR
    assert found.waiting_p50_s == near(0.04, rel=error)
    assert found.waiting_p95_s == found.waiting_p99_s == near(6.0, rel=error)
    assert found.longest_wait_s == near(6.0, rel=error)
    assert found.busy_p50_s == near(0.04, rel=error)


def test_the_middle_of_a_bucket_is_the_same_in_sql(spark: SparkSession) -> None:
    indexes = [histogram.bucket(us) for us in (0, 31, 32, 33, 1_000, 123_456_789, 10**13)]
    made = spark.createDataFrame([(index,) for index in indexes], "i int")
    found = made.select(throughput._middle("i").alias("m")).collect()
    assert [each.m for each in found] == [histogram.middle(index) for index in indexes]


def test_an_arrival_is_put_back_to_when_it_came(spark: SparkSession) -> None:
    ages = hist(60 * SECOND, 60 * SECOND, 5 * 3600 * SECOND)
    at_us = T0 + 6 * HOUR_US + 30 * 60 * SECOND
    found = run(spark, [row("enqueued", 3, at_us=at_us, waiting_hist=ages)])
    assert [(each.at[11:13], each.enqueued) for each in found] == [("01", 1), ("06", 2)]


def test_the_backlog_is_added_up_from_before_the_range(spark: SparkSession) -> None:
    rows = [
        row("enqueued", 10, at_us=T0 - HOUR_US, waiting_hist={0: 10}),
        row("done", 4, at_us=T0 - HOUR_US), row("done", 1),
    ]  # fmt: skip
    [found] = run(spark, rows)
    assert (found.backlog, found.enqueued) == (5, 0)


def test_days_are_local_and_may_have_23_hours(spark: SparkSession) -> None:
    # In Berlin the clock goes forward in the night to 2026-03-29: that day begins at 23:00 UTC.
    rows = [row("done", n, at_us=T0 + hours * HOUR_US) for n, hours in ((1, -1), (2, 21), (4, 22))]
    found = run(spark, rows, every="day", tz="Europe/Berlin", from_us=T0 - HOUR_US)
    assert [(each.at, each.done) for each in found] == [
        ("2026-03-28 23:00", 3), ("2026-03-29 22:00", 4)]  # fmt: skip


def test_rates_are_those_of_the_time_that_is_in_the_range(spark: SparkSession) -> None:
    # Given the day of 23 hours, and half an hour of the next one
    hour = 3_600
    rows = [row("done", 46 * hour), row("done", hour, at_us=T0 + 22 * HOUR_US)]
    found = run(spark, rows, every="day", tz="Europe/Berlin", from_us=T0 - HOUR_US,
                to_us=T0 + 22 * HOUR_US + HOUR_US // 2)  # fmt: skip
    assert [each.ends_per_s for each in found] == [2.0, 2.0]


@pytest.mark.parametrize(
    ("every", "tz", "hours"),
    [
        ("hour", "UTC", 9),
        ("day", "UTC", 0),
        ("day", "Europe/Berlin", -1),
        ("day", "Asia/Tokyo", -9),
    ],
)
def test_a_range_begins_with_a_whole_hour_or_day(
    every: throughput.Every, tz: str, hours: int
) -> None:
    at_us = T0 + 9 * HOUR_US + HOUR_US // 2
    assert throughput.begins(at_us, every, tz) == T0 + hours * HOUR_US


def test_keys_are_kept_apart_and_nobody_is_one_of_them(spark: SparkSession) -> None:
    rows = [
        row("done", 1), row("done", 2, owner="a"), row("done", 4, owner="a", name="m"),
        row("enqueued", 8, waiting_hist={0: 8}),
    ]  # fmt: skip
    found = run(spark, rows, by=("owner", "task"))
    assert [(each.owner, each.task, each.done, each.enqueued) for each in found] == [
        (None, "n", 1, 8), ("a", "m", 4, 0), ("a", "n", 2, 0)]  # fmt: skip


def test_work_without_a_tenant_is_one_key(spark: SparkSession) -> None:
    # Given tasks that came before the queue had a fair key, and ended without its header
    rows = [
        row("enqueued", 3, waiting_hist={0: 3}), row("enqueued", 1, waiting_hist={0: 1}, tenant=""),
        row("done", 1), row("done", 2, tenant=""),
        row("enqueued", 5, waiting_hist={0: 5}, tenant="acme"), row("done", 4, tenant="acme"),
    ]  # fmt: skip
    # Then they are one key, whose backlog adds up
    found = run(spark, rows, by=("queue", "tenant"))
    values = [(each.tenant, each.enqueued, each.done, each.backlog) for each in found]
    assert values == [("", 4, 3, 1), ("acme", 5, 4, 1)]
    moved = throughput.movers(frame(spark, rows), to_us=T0 + HOUR_US, by=("tenant",)).collect()
    assert [(each.tenant, each.after) for each in moved] == [("acme", 4), ("", 3)]


def test_rows_of_an_older_version_are_counted_as_such(spark: SparkSession) -> None:
    [found] = run(spark, [row("done", 3, waiting_hist={}, busy_hist={}), row("done", 2)])
    assert (found.done, found.unrecorded) == (5, 3)


def test_movers_compare_a_week_with_the_week_before(spark: SparkSession) -> None:
    day = 24 * HOUR_US
    rows = [
        row("done", 100, at_us=T0 - 8 * day, queue="falls", busy_us=2 * SECOND),
        row("done", 10, at_us=T0 - day, queue="falls"),
        row("done", 50, at_us=T0 - day, queue="new"), row("retried", 999, at_us=T0 - day),
        row("done", 7, at_us=T0 - 15 * day, queue="old"), row("done", 9, at_us=T0, queue="later"),
    ]  # fmt: skip
    found = throughput.movers(frame(spark, rows), to_us=T0).collect()
    values = [(each.queue, each.before, each.after, each.change) for each in found]
    assert values == [("falls", 100, 10, -90), ("new", 0, 50, 50), ("q", 0, 0, 0)]
    assert [each.change_share for each in found] == [-0.9, None, None]
    assert found[0].busy_before_s == 2.0


def test_the_report_on_the_command_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # The session of all tests stays: what the command starts, it would also end.
    monkeypatch.setattr(session, "stop", lambda _: None)
    url = SQLITE.create(tmp_path)
    cli = Cli(capsys, url)
    write(url, [settled(1, [done(3)]), settled(2, [done(4, queue="p")])])
    export(url, tmp_path / "lake")
    prune(url, 1)
    write(url, [settled(3, [done(5)])])
    range_ = ("--from", "2026-09-21T00:00:00Z", "--to", "2026-09-22T00:00:00Z", "--url", url)
    pruned = cli("report", "throughput", *range_)
    assert (pruned.code, "the journal of default/0 was pruned" in pruned.err) == (1, True)
    lake = ("--lake", str(tmp_path / "lake"))
    table = cli("report", "throughput", *range_, *lake, "--movers")
    assert (table.code, "Movers" in table.out) == (0, True)
    tenants = cli("report", "throughput", *range_, *lake, "--by", "tenant", "--json")
    assert [each["tenant"] for each in tenants.json["rows"]] == ["(none)"]
    out = tmp_path / "report.csv"
    assert cli("report", "throughput", *range_, *lake, "--out", str(out)).code == 0
    lines = out.read_text().splitlines()
    assert [line[:33] for line in lines[1:]] == [
        "2026-09-21 14:00:00+00:00,p,0,4,0", "2026-09-21 14:00:00+00:00,q,0,8,0"]  # fmt: skip
    again = cli("report", "throughput", *range_, *lake, "--out", str(out))
    assert (again.code, "--force replaces it" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (("--by", "queue,price"), "--by 'price': some of queue, task"),
        (("--by", ","), "--by nothing"),
        (("--every", "week"), "--every 'week': hour or day"),
        (("--tz", "Mars/Olympus"), "there is no such time zone"),
        (("--out", "x.xlsx"), "x.xlsx: .csv or .parquet"),
        (("--out", "nowhere/x.csv"), "there is no folder nowhere"),
        (("--from", "1h", "--to", "2h"), "--from 1h is not before --to 2h"),
        (("--lake", "nowhere"), "--lake nowhere is no lake"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: tuple[str, ...], says: str
) -> None:
    url = SQLITE.create(tmp_path)
    ended = Cli(capsys, url)("report", "throughput", "--url", url, *wrong)
    assert (ended.code, says in ended.err) == (2, True), ended.err


def test_movers_refuse_a_week_that_is_not_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given a journal that begins in the week before the last seven days
    url = SQLITE.create(tmp_path)
    write(url, [settled(2, [done(3)]), settled(3, [done(3)])])
    range_ = ("--from", "2026-09-29T00:00:00Z", "--to", "2026-09-30T00:00:00Z")
    # Then it is refused, although the journal has all of the range
    ended = Cli(capsys, url)("report", "throughput", "--url", url, *range_, "--movers")
    assert (ended.code, "the journal of default/0 was pruned" in ended.err) == (1, True)


def test_a_name_is_no_formula(tmp_path: Path) -> None:
    out = tmp_path / "x.csv"
    command._write(out, [{"at": MIDNIGHT, "tenant": "=1+1", "owner": None, "done": -1}])
    assert out.read_text().splitlines()[1] == "2026-03-29 00:00:00+00:00,'=1+1,,-1"
