"""The lake: every settlement once, whatever dies when; nothing missing in silence."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from late_spark import export as exporting
from late_spark import lake, lake_files, live, parts
from late_spark.bounds import Bounds
from late_spark.export import export
from late_spark.frames import USAGE
from late_spark.parts import JournalPruned
from late_spark.place import Source, look
from late_spark.source_options import known_of, known_text
from pyspark.sql import SparkSession

from late.errors import ConfigError
from tests.conformance.backends import BACKENDS
from tests.spark.kit import SECOND, START_US, done, prune, put_together, settled, write
from tests.unit.cli_kit import Cli

SQLITE = next(each for each in BACKENDS if not each.network)
DAY = 86_400 * SECOND


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return SQLITE.create(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def rows(folder: Path) -> Counter[tuple[int, int]]:
    """(shard, seq) -> how often, of what the manifest lists."""
    manifest = lake.load(folder)
    assert manifest is not None
    found: Counter[tuple[int, int]] = Counter()
    for each in manifest.files:
        table = pq.ParquetFile(folder / each.path).read()
        assert table.num_rows == each.rows
        found.update(zip(table["shard_id"].to_pylist(), table["seq"].to_pylist(), strict=True))
    return found


def test_each_settlement_is_exported_once(url: str, folder: Path) -> None:
    write(url, [settled(seq, [done(1)], shard=shard) for shard in (0, 5) for seq in (1, 2)])
    first = export(url, folder)
    assert (first.settlements, first.rows, first.files) == (4, 4, 1)
    assert export(url, folder).rows == 0
    write(url, [settled(3, [done(1)]), settled(4), settled(1, [done(1)], shard=7)])
    second = export(url, folder)
    assert (second.settlements, second.rows) == (3, 2)
    assert rows(folder) == Counter([(0, 1), (0, 2), (0, 3), (5, 1), (5, 2), (7, 1)])


def test_the_journal_may_be_pruned_behind_an_export(file_url: str, folder: Path) -> None:
    write(file_url, [settled(seq, [done(1)]) for seq in (1, 2, 3)])
    export(file_url, folder)
    prune(file_url, 3)
    assert export(file_url, folder).rows == 0
    write(file_url, [settled(4, [done(1)])])
    export(file_url, folder)
    assert rows(folder) == Counter((0, seq) for seq in (1, 2, 3, 4))


def test_what_is_compacted_across_the_end_of_a_lake_is_exported_once(
    file_url: str, folder: Path
) -> None:
    """The export takes what it has already out of the row that has both."""
    write(file_url, [settled(seq, [done(seq)]) for seq in range(1, 8)])
    export(file_url, folder)
    write(file_url, [settled(seq, [done(seq)]) for seq in range(8, 12)])
    put_together(file_url, 6, 7)
    put_together(file_url, 3, 9)
    manifest = lake.load(folder)
    assert manifest is not None
    counted = known_of(known_text(lake.known(file_url, folder, manifest)))
    after = manifest.after()
    [part] = live.plan(file_url, "usage", Bounds(), after=after, known=counted).parts
    [tail] = parts.read(file_url, "usage", part, ["seq", "count"], Bounds(), {})
    assert tail.to_pylist()[0] == {"seq": 9, "count": 17}
    assert (part.stretches[0].begins, part.stretches[0].first) == (3, 8)
    assert export(file_url, folder).settlements == 4
    assert rows(folder) == Counter((0, seq) for seq in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11))
    manifest = lake.load(folder)
    assert manifest is not None
    tables = [pq.ParquetFile(folder / each.path).read() for each in manifest.files]
    for column, each in (("count", 1), ("busy_us", 100), ("bytes", 10)):
        assert sum(sum(t[column].to_pylist()) for t in tables) == each * sum(range(1, 12))
    assert sum(n for t in tables for h in t["busy_hist"].to_pylist() for _, n in h) == 66
    # The same once more, a bucket of what was taken out of a bucket.
    write(file_url, [settled(12, [done(12)])])
    put_together(file_url, 3, 11)
    put_together(file_url, 1, 12)
    export(file_url, folder)
    manifest = lake.load(folder)
    assert manifest is not None
    tables = [pq.ParquetFile(folder / each.path).read() for each in manifest.files]
    assert sum(sum(t["count"].to_pylist()) for t in tables) == sum(range(1, 13))


def test_files_are_by_the_date_of_the_settlement(file_url: str, folder: Path) -> None:
    write(file_url, [settled(seq, [done(1)], at_us=START_US + seq * DAY) for seq in (1, 2, 2 + 1)])
    export(file_url, folder)
    dates = sorted(each.name for each in (folder / "usage").iterdir())
    assert dates == ["date=2026-09-22", "date=2026-09-23", "date=2026-09-24"]


@pytest.mark.parametrize("dies_in", ["commit", "read"])
def test_an_export_that_dies_is_done_again(
    file_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    write(file_url, [settled(seq, [done(1)]) for seq in range(1, 5)])
    monkeypatch.setattr(live, "SETTLEMENTS", 1)
    monkeypatch.setattr(exporting, "PARTS", 2)
    real = {"commit": lake.commit, "read": parts.read}[dies_in]
    calls = []

    def dies(*args: object, **more: object) -> object:
        calls.append(args)
        # Of the commits, the first one makes the lake.
        if len(calls) == (3 if dies_in == "commit" else 4):
            raise KeyboardInterrupt
        return real(*args, **more)  # type: ignore[operator]

    with monkeypatch.context() as patched:
        patched.setattr({"commit": lake, "read": parts}[dies_in], dies_in, dies)
        with pytest.raises(KeyboardInterrupt):
            export(file_url, folder)
    assert rows(folder) == Counter([(0, 1), (0, 2)]), "what was committed before is there"
    export(file_url, folder)
    assert rows(folder) == Counter((0, seq) for seq in range(1, 5))
    listed = {folder / each.path for each in lake.load(folder).files}  # type: ignore[union-attr]
    assert set((folder / "usage").rglob("*.parquet")) == listed, "and nothing is left over"


def test_a_first_export_that_dies_is_done_again(
    file_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a first export that is killed before anything of it counts
    write(file_url, [settled(1, [done(1)])])

    def dies(*_: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(exporting, "_grown", dies)
        with pytest.raises(KeyboardInterrupt):
            export(file_url, folder)
    assert len(list((folder / "usage").rglob("*.parquet"))) == 1
    (folder / lake.FOLDER / ".manifest-000001.json.77").write_text("half")
    # When it is run again
    export(file_url, folder)
    # Then it is as if nothing had been
    assert rows(folder) == Counter([(0, 1)])
    assert len(list((folder / "usage").rglob("*.parquet"))) == 1
    assert list((folder / lake.FOLDER).glob(".*")) == []


def test_small_files_are_put_together(file_url: str, folder: Path) -> None:
    compacted = []
    for seq in range(1, lake_files.COMPACT_FILES + 2):
        write(file_url, [settled(seq, [done(1)])])
        compacted.append(export(file_url, folder).compacted)
    assert compacted == [0] * lake_files.COMPACT_FILES + [lake_files.COMPACT_FILES + 1]
    manifest = lake.load(folder)
    assert manifest is not None
    assert len(manifest.files) == 1
    assert rows(folder) == Counter((0, seq) for seq in range(1, lake_files.COMPACT_FILES + 2))


def test_what_was_pruned_before_it_was_exported_is_named(file_url: str, folder: Path) -> None:
    write(file_url, [settled(seq, [done(1)]) for seq in (1, 2)])
    export(file_url, folder)
    write(file_url, [settled(seq, [done(1)]) for seq in (3, 4, 5)])
    prune(file_url, 4)
    with pytest.raises(JournalPruned, match=r"settlements 3\.\.4 of default/0 are gone"):
        export(file_url, folder)
    assert rows(folder) == Counter([(0, 1), (0, 2)])
    export(file_url, folder, accept_gaps=True)
    assert rows(folder) == Counter([(0, 1), (0, 2), (0, 5)])
    manifest = lake.load(folder)
    assert manifest is not None
    manifest.covers(START_US + 5 * SECOND, None)
    manifest.covers(START_US, START_US + SECOND)
    with pytest.raises(JournalPruned, match=r"settlements 3\.\.4 of default/0, between 2026"):
        manifest.covers(START_US, None)
    with pytest.raises(JournalPruned, match="with --accept-gaps"):
        look(Source(lake=folder), START_US, START_US + DAY)
    accepted = Source(lake=folder, accept_gaps=True)
    assert look(accepted, START_US, START_US + DAY).files
    assert "WITHOUT settlements 3..4 of default/0, between 2026-" in accepted.said()
    assert "WITHOUT" not in Source(lake=folder).said()


def test_a_lake_that_begins_within_the_range_is_refused(file_url: str, folder: Path) -> None:
    write(file_url, [settled(seq, [done(1)]) for seq in (1, 2, 3)])
    prune(file_url, 1)
    export(file_url, folder)
    manifest = lake.load(folder)
    assert manifest is not None
    manifest.covers(START_US + SECOND, None)
    with pytest.raises(JournalPruned, match=r"the lake has default/0 from 2026-09-21T14:13:21Z on"):
        manifest.covers(START_US, None)


def test_a_journal_that_was_begun_anew_is_refused(file_url: str, folder: Path) -> None:
    write(file_url, [settled(seq, [done(1)]) for seq in (1, 2)])
    export(file_url, folder)
    prune(file_url, 2)
    write(file_url, [settled(1, [done(1)], owner="w2")])
    with pytest.raises(JournalPruned, match="ends with settlement 1, and 2 is known"):
        export(file_url, folder)
    write(file_url, [settled(seq, [done(1)], owner="w2") for seq in (2, 3)])
    with pytest.raises(ConfigError, match="was begun anew since the last export"):
        export(file_url, folder)


def test_a_lake_of_another_deployment_is_refused(file_url: str, folder: Path) -> None:
    write(file_url, [settled(1, [done(1)])])
    export(file_url, folder)
    manifest = lake.load(folder)
    assert manifest is not None
    lake.commit(folder, msgspec.structs.replace(manifest, deployment="other"))
    with pytest.raises(ConfigError, match="is of deployment other"):
        export(file_url, folder)


def test_a_report_does_not_add_the_journal_of_another_database(file_url: str, folder: Path) -> None:
    write(file_url, [settled(1, [done(1)])])
    export(file_url, folder)
    manifest = lake.load(folder)
    assert manifest is not None
    lake.commit(folder, msgspec.structs.replace(manifest, deployment="other"))
    with pytest.raises(ConfigError, match="is of deployment other, the database is"):
        look(Source(url=file_url, lake=folder), None, 2**62)
    assert look(Source(lake=folder), None, 2**62).files


def test_a_folder_with_something_else_is_refused(file_url: str, folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty and is no lake"):
        export(file_url, folder)


def test_of_two_exports_one_counts(file_url: str, folder: Path) -> None:
    write(file_url, [settled(1, [done(1)])])
    export(file_url, folder)
    manifest = lake.load(folder)
    assert manifest is not None
    lake.commit(folder, manifest)
    with pytest.raises(ConfigError, match="another export has written"):
        lake.commit(folder, manifest)
    with exporting._alone(folder), pytest.raises(ConfigError, match="another export is writing"):
        export(file_url, folder)


def test_a_manifest_that_is_damaged_is_named(file_url: str, folder: Path) -> None:
    write(file_url, [settled(1, [done(1)])])
    export(file_url, folder)
    path = folder / lake.FOLDER / "manifest-000001.json"
    path.write_text(json.dumps({"deployment": 3}))
    with pytest.raises(ConfigError, match=r"manifest-000001\.json cannot be read"):
        lake.load(folder)


def test_lake_and_live_tail_count_each_settlement_once(
    spark: SparkSession, file_url: str, folder: Path
) -> None:
    write(file_url, [settled(seq, [done(seq)]) for seq in (1, 2, 3)])
    export(file_url, folder)
    write(file_url, [settled(4, [done(4)]), settled(1, [done(10)], shard=6)])
    found = lake.frame(spark, folder, url=file_url, from_us=START_US)
    assert found.schema == USAGE
    assert sorted(row["count"] for row in found.collect()) == [1, 2, 3, 4, 10]
    prune(file_url, 3)
    assert lake.frame(spark, folder, url=file_url).count() == 5
    assert lake.frame(spark, folder, from_us=START_US + DAY).count() == 0, "no file has such rows"


def test_a_lake_on_the_command_line(
    file_url: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = Cli(capsys, file_url)
    write(file_url, [settled(1, [done(3)]), settled(1, [done(1)], shard=2)])
    ended = cli("lake", "export", str(folder), "--url", file_url)
    assert (ended.code, ended.out) == (0, "2 settlements, 2 rows of usage in 1 new files\n")
    assert cli("lake", "export", str(folder), "--url", file_url, "--json").json["rows"] == 0
    shown = cli("lake", "show", str(folder))
    assert (shown.code, "2026-09-21" in shown.out) == (0, True)
    assert cli("lake", "show", str(folder), "--json").json["files"][0]["rows"] == 2
    prune(file_url, 1)
    write(file_url, [settled(3)])
    refused = cli("lake", "export", str(folder), "--url", file_url)
    assert (refused.code, "settlements 2..2 of default/0 are gone" in refused.err) == (1, True)
    nowhere = cli("lake", "show", str(folder / "usage"))
    assert (nowhere.code, "is no lake" in nowhere.err) == (2, True)
    file = folder / "file"
    file.touch()
    for place in (file, file / "lake"):
        failed = cli("lake", "export", str(place), "--url", file_url)
        assert (failed.code, failed.err.count("\n")) == (2, 1)
        assert failed.err.startswith(f"late: lake {place}: ")


def test_of_the_journal_only_the_range_is_read(
    spark: SparkSession, file_url: str, folder: Path
) -> None:
    # Given settlements before and after the range, whose usage nobody can read
    write(file_url, [settled(1, [done(1)], at_us=START_US)])
    export(file_url, folder)
    days = [settled(n, [done(n)], at_us=START_US + n * DAY) for n in range(3, 8)]
    write(file_url, [settled(2, "oops", at_us=START_US + DAY), *days,
                     settled(8, "oops", at_us=START_US + 9 * DAY)])  # fmt: skip
    between = {"from_us": START_US + 4 * DAY, "to_us": START_US + 7 * DAY}
    # When the range is read, of the store and behind the lake
    alone = lake.tail(spark, file_url, **between)
    both = lake.frame(spark, folder, url=file_url, **between)
    # Then what is in it is there, and nothing else was looked at
    assert sorted(row.seq for row in alone.select("seq").collect()) == [4, 5, 6]
    assert sorted(row.seq for row in both.select("seq").collect()) == [4, 5, 6]
