"""The lake, reports and the page beside a compaction: every settlement counts once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from late_spark import export as exporting
from late_spark import lake, lake_files, live
from late_spark.export import export
from late_spark.parts import JournalPruned

from late.control import Control
from late.model.task import Usage
from late.model.usage_sums import summed
from late.store import open_store
from late.store.base import Store
from late.store.common import compaction
from tests.conformance.backends import Backend, Raw
from tests.conformance.journal_kit import (
    HOUR_US,
    MINUTE_US,
    Steps,
    compact,
    settled_at,
    sound,
    sums,
    usage,
)
from tests.conformance.kit import Owner, own
from tests.spark.kit import read


@pytest.fixture
def raw(backend: Backend, url: str) -> Iterator[Raw]:
    with closing(backend.raw(url)) as made:
        yield made


def usage_of(tables: list[pa.Table]) -> tuple[Usage, ...]:
    """What rows of usage add up to, as the journal would have it."""
    found = [
        Usage(
            row["queue"], row["name"], row["target"], row["outcome"], row["count"],
            row["attempts"], row["busy_us"], row["waiting_us"], row["bytes"], row["retries"],
            row["lateness_us"], row["delayed"], tuple(map(tuple, row["waiting_hist"])),
            tuple(map(tuple, row["busy_hist"])), row["tenant"],
        )
        for table in tables
        for row in table.to_pylist()
    ]  # fmt: skip
    return counts(found)


def counts(usage: Any) -> tuple[Usage, ...]:
    """Sums of usage without those of nothing, which an export need not carry."""
    return tuple(each for each in summed(usage) if any(msgspec.structs.astuple(each)[4:14]))


def exported(folder: Path) -> tuple[Usage, ...]:
    manifest = lake.load(folder)
    assert manifest is not None
    return usage_of([pq.ParquetFile(folder / each.path).read() for each in manifest.files])


class Page:
    """What the page does: it goes on from where it was, or begins again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._read: dict[Any, int] = {}
        self._usage: list[Usage] = []

    def sums(self) -> tuple[Usage, ...]:
        with Control(self._url) as control:
            while True:
                found = control.status.usage_since(1, self._read, rows=4)
                self._read = dict(found.read)
                if found.anew:
                    self._usage.clear()
                self._usage += [usage for _, usage in found.usage]
                if found.whole:
                    return counts(self._usage)


class Journal:
    """Settlements of one hour of yesterday and, behind them, of three hours ago, five a minute."""

    def __init__(self, store: Store, raw: Raw, owner: Owner) -> None:
        self._raw, self._owner, self._rng = raw, owner, Random(7)
        self._at_us = 0
        self.store = store

    @classmethod
    async def begin(cls, store: Store, raw: Raw) -> Journal:
        made = cls(store, raw, await own(store))
        now_us = await store.now()
        made._at_us = (now_us - 27 * HOUR_US) // HOUR_US * HOUR_US
        settled_at(raw, made._owner, made._owner.seq, made._at_us)
        return made

    async def of_the_hour(self, count: int) -> None:
        await self._settle(count, 60_000_000)

    async def of_the_minutes(self, count: int) -> None:
        now_us = await self.store.now()
        self._at_us = max(self._at_us, (now_us - 3 * HOUR_US) // MINUTE_US * MINUTE_US)
        await self._settle(count, 12_000_000)

    async def _settle(self, count: int, apart_us: int) -> None:
        for _ in range(count):
            await self._owner.settle(usage=(*usage(self._rng), Usage("q", "n", "", "done", 1)))
            self._at_us += apart_us
            settled_at(self._raw, self._owner, self._owner.seq, self._at_us)


async def test_every_reader_at_every_step_of_a_compaction(
    url: str, store: Store, raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever read a part before: of an hour, of a minute, or all; and whoever begins."""
    monkeypatch.setattr(compaction, "BATCH", 5)
    journal = await Journal.begin(store, raw)
    page = Page(url)
    await journal.of_the_hour(8)
    await asyncio.to_thread(export, url, tmp_path / "in an hour")
    page.sums()
    await journal.of_the_hour(6)
    await journal.of_the_minutes(7)
    await asyncio.to_thread(export, url, tmp_path / "in a minute")
    await journal.of_the_minutes(8)
    whole = sums(raw)
    counted = counts(whole)
    steps = Steps(monkeypatch, store)

    def look() -> None:
        assert usage_of([read(url)]) == counted, "a report that reads the journal"
        for name in ("in an hour", "in a minute"):
            shutil.copytree(tmp_path / name, tmp_path / f"{name}, at step {steps.taken}")
        for name in ("", "in an hour, ", "in a minute, "):
            folder = tmp_path / f"{name}at step {steps.taken}"
            export(url, folder)
            assert exported(folder) == counted, folder.name
        sound(url, raw, whole)

    async def after() -> None:
        await asyncio.to_thread(look)

    steps.after = after
    assert (await compact(store)).compacted > 15
    assert steps.taken > 6
    assert page.sums() == counted
    for name in ("in an hour", "in a minute", "at step 1", "in an hour, at step 2"):
        export(url, tmp_path / name)
        assert exported(tmp_path / name) == counted, name


@pytest.mark.parametrize("place", ["after the plan", "after a part", "after the files"])
def test_a_compaction_in_the_middle_of_an_export(
    url: str, raw: Raw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """It is exported whole or refused, and the next export is whole."""
    folder = tmp_path / "lake"

    async def opened(work: Callable[[Store], Awaitable[object]]) -> None:
        store = open_store(url)
        await store.open()
        await work(store)
        await store.close()

    async def begin(store: Store) -> None:
        journal = await Journal.begin(store, raw)
        await journal.of_the_hour(8)
        await asyncio.to_thread(export, url, folder)
        await journal.of_the_hour(6)
        await journal.of_the_minutes(12)

    def then_compacts(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **more: Any) -> Any:
            found = real(*given, **more)
            asyncio.run(opened(compact))
            return found

        return wrapped

    asyncio.run(opened(begin))
    whole = sums(raw)
    module, name = {
        "after the plan": (live, "plan"),
        "after a part": (lake, "commit"),
        "after the files": (lake_files, "written"),
    }[place]
    with monkeypatch.context() as patched:
        patched.setattr(live, "SETTLEMENTS", 4)
        patched.setattr(exporting, "PARTS", 1)
        patched.setattr(module, name, then_compacts(getattr(module, name)))
        with pytest.raises(JournalPruned):
            export(url, folder)
    export(url, folder)
    assert exported(folder) == counts(whole)
    assert usage_of([read(url)]) == counts(whole)
    sound(url, raw, whole)
