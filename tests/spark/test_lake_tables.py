"""The lake as a Delta and as an Iceberg table, by the code of the guide."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from late_spark.export import export

from tests.conformance.backends import BACKENDS
from tests.spark.kit import done, settled, write

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
SQLITE = next(each for each in BACKENDS if not each.network)


def delta() -> pa.Table:
    from deltalake import DeltaTable

    return DeltaTable("usage-delta").to_pyarrow_table()


def iceberg() -> pa.Table:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("late", uri="sqlite:///usage-iceberg/catalog.db")
    return catalog.load_table("late.usage").scan().to_arrow()


@pytest.mark.parametrize("read", [delta, iceberg])
@pytest.mark.filterwarnings("ignore:Delete operation did not match")
def test_a_table_has_what_the_lake_has(
    read: Callable[[], pa.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = re.findall(r'^```python title="(\w+)\.py"\n(.*?)^```', GUIDE.read_text(), re.M | re.S)
    (tmp_path / "made.py").write_text(dict(guide)[read.__name__])
    monkeypatch.chdir(tmp_path)
    url = SQLITE.create(tmp_path)
    for exports in (1, 2):  # the second table takes the place of the first
        write(url, [settled(exports, [done(1), done(2)])])
        export(url, tmp_path / "lake")
        runpy.run_path("made.py")
        table = read()
        assert sum(table["count"].to_pylist()) == 3 * exports
        assert all(dict(each) for each in table["busy_hist"].to_pylist())
