"""DuckDB and Spark find the same, to the byte of what is written; and the size chooses."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from late_spark import duck, java, place
from late_spark.export import export
from late_spark.live import Plan
from late_spark.parts import Part, Stretch
from late_spark.place import FILES_MAX, SETTLEMENTS_MAX, Found, Source
from pyspark.sql import SparkSession

from late.errors import ConfigError, StoreError
from tests.spark import kit, usage_kit
from tests.spark.usage_kit import row
from tests.unit.cli_kit import Cli, cli

__all__ = ["cli"]

PRICES = """
version: 1
name: production
currency: USD
time_zone: Europe/Berlin
prices:
- {line: nodes, unit: node_hour, price: "0.7", quantity: 3,
   drivers: {tasks: 30, writes: 20, reads: 20, idle: 10, retries: 10}}
- {line: storage, unit: gb_month, price: "0.3", quantity: 7, drivers: {bytes: 60, busy: 30}}
"""
# Two months in a zone whose clock changes, with tenants, owners and names that are no plain words,
# work of an hour around midnight, and a storm of one tenant.
ROWS = [
    row(f"{day}T{hour}:30:00Z", queue, "it's :a {b}", outcome, 7 + at * scale, retries=at % 3,
        tenant=tenant, owner=owner, shard_id=at % 4, bytes=11 * at,
        waiting_hist={at % 900: 7}, busy_hist={20: 3, 40 + at % 9: 4 + at})
    for at, day in enumerate([f"2026-{month:02}-{n:02}" for month in (2, 3) for n in range(1, 29)])
    for hour in ("10", "22", "23")
    for queue, tenant, owner, scale in (
        ("mail", "acme", "growth", 1), ("mail", "globex", "growth", 60 if at == 50 else 1),
        ("pay", None, None, 2),
    )
    for outcome in ("done", "retried", "dead", "enqueued")
]  # fmt: skip
RANGE = ("--from", "2026-03", "--to", "2026-04")
REPORTS = {
    "cost": ("report", "cost", *RANGE, "--by", "owner,queue,tenant,day"),
    "close": ("close", "2026-03"),
    "impact": ("report", "impact", *RANGE, "--at", "2026-03-12", "--queue", "mail"),
    "capacity": ("report", "capacity", *RANGE, "--growth", "2", "--set", "mail.rate=1"),
}


@pytest.fixture(scope="module")
def usage(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(usage_kit.write(ROWS, tmp_path_factory.mktemp("months") / "usage"))


def files(folder: str) -> dict[str, bytes]:
    """The content of each file, but for workbooks and Parquet, which say how they were made."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.suffix in (".csv", ".html", ".json")
    }


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_the_same_on_both(cli: Cli, usage: str, spark: SparkSession, name: str) -> None:
    Path("prices.yaml").write_text(PRICES)
    prices = () if name == "capacity" else ("--prices", "prices.yaml")
    made = {}
    for engine in ("duckdb", "spark"):
        ended = cli(*REPORTS[name], *prices, "--usage", usage, "--out", engine, "--engine", engine)
        assert ended.code == 0, ended.err
        made[engine] = files(engine), re.sub(r"written: .*", "", ended.out)
    assert made["duckdb"] == made["spark"]


def test_a_lake_and_the_journal_behind_it_are_the_same_on_both(
    cli: Cli, tmp_path: Path, spark: SparkSession
) -> None:
    # Given a lake whose last row goes on in the journal, where compaction has put both together
    Path("prices.yaml").write_text(PRICES)
    kit.write(cli.url, [kit.settled(n, [kit.done(10 * n)]) for n in (1, 2)])
    export(cli.url, tmp_path / "lake")
    kit.write(cli.url, [kit.settled(n, [kit.done(n, queue="r")]) for n in (3, 4)])
    kit.put_together(cli.url, 2, 3)
    # When it is reported by each
    sources = {"lake": ("--lake", str(tmp_path / "lake")), "url": ("--url", cli.url)}
    sources["both"] = sources["lake"] + sources["url"]
    found = {}
    for source, options in sources.items():
        for engine in ("duckdb", "spark"):
            out = f"{source}-{engine}"
            ended = cli("report", "cost", "--from", "2026-09-21", "--to", "2026-09-22", "--by",
                        "queue", "--prices", "prices.yaml", *options, "--out", out,
                        "--engine", engine)  # fmt: skip
            assert ended.code == 0, ended.err
            found[source, engine] = files(out)["costs.csv"]
    # Then nothing counts twice, by none of them
    tasks = [line.split(b",")[2] for line in found["both", "duckdb"].splitlines()[1:3]]
    assert tasks == [b"30", b"7"]
    assert found["both", "duckdb"] == found["url", "duckdb"] == found["both", "spark"]
    assert found["lake", "duckdb"] == found["lake", "spark"]


def test_no_java_is_needed_for_duckdb(
    cli: Cli, usage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Path:
        raise ConfigError("no Java")

    monkeypatch.setattr(java, "find", none)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    Path("prices.yaml").write_text(PRICES)
    asked = (*REPORTS["cost"], "--prices", "prices.yaml", "--usage", usage, "--out", "out")
    ended = cli(*asked)
    assert ended.code == 0, ended.err
    assert re.search(r"^\[report\] reading by DuckDB: 0\.\d MiB of Parquet$", ended.err, re.M)
    refused = cli(*asked, "--engine", "spark", "--force")
    assert (refused.code, "no Java" in refused.err) == (2, True)
    wrong = cli(*asked, "--engine", "abacus", "--force")
    assert (wrong.code, "--engine 'abacus': one of auto, duckdb, spark" in wrong.err) == (2, True)


def plan(settlements: int) -> Plan:
    return Plan((Part((Stretch("default", 0, 1, settlements),)),), {})


@pytest.mark.parametrize(
    ("source", "found", "submitted", "engine", "why"),
    [
        (Source(usage="u"), Found((Path("u"),), 3 << 20), False, "duckdb", "3.0 MiB of Parquet"),
        (Source(usage="u"), Found((Path("u"),), FILES_MAX + 1), False, "spark", "MiB of Parquet"),
        (Source(url="u"), Found(behind=plan(9)), False, "duckdb", "9 settlements"),
        (Source(url="u"), Found(behind=plan(SETTLEMENTS_MAX + 1)), False, "spark", "settlements"),
        (Source(url="u"), Found(behind=plan(9)), True, "spark", "spark-submit"),
        (Source(url="u", engine="duckdb"), Found(behind=plan(9)), True, "duckdb", "asked for"),
        (Source(usage="s3://b"), Found(), False, "spark", "on another machine"),
    ],
)  # fmt: skip
def test_the_size_chooses(
    source: Source, found: Found, submitted: bool, engine: str, why: str
) -> None:
    chosen, said = place.chosen(source, found, submitted=submitted)
    assert (chosen, why in said) == (engine, True)


def test_duckdb_refuses_files_of_another_machine() -> None:
    with pytest.raises(ConfigError, match="--engine duckdb reads local files, not s3://b"):
        place.chosen(Source(usage="s3://b", engine="duckdb"), Found(), submitted=False)


def test_a_file_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"^DuckDB: IO Error: .*gone.parquet[^\n]*$"):
        duck.opened([tmp_path / "gone.parquet"])


def test_a_lake_of_an_older_version_lacks_columns_and_not_rows(tmp_path: Path) -> None:
    # Given a file without a column that came later, and one with it; a quote in the path is no SQL
    folder = usage_kit.write(ROWS[:5], tmp_path / "it's")
    new = folder / "part.parquet"
    old = folder / "old.parquet"
    pq.write_table(pq.read_table(new).drop_columns(["tenant"]), old)
    found = duck.opened([old, new]).ask(
        "select tenant is null as unknown, count(*) as rows from usage group by 1 order by 1"
    )
    assert found == {"unknown": [False, True], "rows": [5, 5]}
