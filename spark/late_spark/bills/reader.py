"""One file of a bill as rows of texts: CSV, JSON by lines or Parquet, plain, gzip or zstd.

DuckDB reads it, in a stream. Every cell comes as the text that is in the file, or for a number of
Parquet as the shortest that means the same double, so that amounts stay decimal.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from late.errors import ConfigError

_BATCH = 5_000
_HEAD = 1 << 16
_MAPS = frozenset({"Tags", "SkuPriceDetails", "resource_tags", "product", "cost_category"})
"""Columns whose keys are the customer's own: JSON has them as structures."""
_ENCODING = re.compile(r"CSV Error on Line: (\d+)[\s\S]*not utf-8 encoded")
_CELLS = re.compile(r"CSV Error on Line: (\d+)[\s\S]*Expected Number of Columns")
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


class Table(NamedTuple):
    """A file that can be read."""

    path: Path
    columns: tuple[str, ...]
    """Fields of structures by their path: `service.description`."""
    cells: tuple[str, ...]
    """The expression of each; lists and maps are JSON."""
    source: str
    """A table of SQL; its first parameter is the path."""
    first: int
    """The number of the first row: 2 below a header, else 1."""


def table(path: Path) -> Table:
    """Look at a file: what it is, and its columns.

    Raises:
        ConfigError: it is not there, empty, damaged, or no kind that is known.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ConfigError(f"bill {path}: {error.strerror}") from None
    if not magic:
        raise ConfigError(f"bill {path} is empty: fetch it again, or take it away")
    if magic == b"PK\x03\x04":
        raise ConfigError(f"bill {path} is a ZIP archive: unpack it, and give what is in it")
    if magic == b"PAR1":
        return _described(path, "read_parquet(?)")
    packed = next((name for begin, name in _PACKED.items() if magic.startswith(begin)), "none")
    head = _head(path, packed)
    if head.lstrip().startswith("{"):
        source = f"read_json(?, format='newline_delimited', compression='{packed}')"
        return _described(path, source)
    return _csv(path, head, packed)


def rows(of: Table) -> Iterator[tuple[int, list[str]]]:
    """Yield (number, cells) in the order of the file; what is null is "".

    Raises:
        ConfigError: a row has too few or too many cells, or the file ends too early.
    """
    import duckdb

    chosen = ", ".join(of.cells)
    try:
        with _connected() as connection:
            found = connection.execute(f"select {chosen} from {of.source}", [str(of.path)])
            number = of.first
            while batch := found.fetchmany(_BATCH):
                for row in batch:
                    yield number, ["" if cell is None else cell for cell in row]
                    number += 1
    except duckdb.Error as error:
        raise _explained(of.path, error) from None


def _head(path: Path, packed: str) -> str:
    import pyarrow as pa

    try:
        with pa.input_stream(str(path), compression=None if packed == "none" else packed) as file:
            found = file.read(_HEAD)
    except (OSError, pa.ArrowException):
        raise _damaged(path) from None
    try:
        text: str = found.decode("utf-8-sig", errors="strict" if len(found) < _HEAD else "ignore")
    except UnicodeDecodeError as error:
        if b"\0" not in found:
            raise _of_another_encoding(path, found.count(b"\n", 0, error.start) + 1) from None
        raise ConfigError(f"bill {path} is no bill: neither CSV nor JSON nor Parquet") from None
    if "\0" in text:
        raise ConfigError(f"bill {path} is no bill: neither CSV nor JSON nor Parquet")
    return text


def _csv(path: Path, head: str, packed: str) -> Table:
    columns = next(csv.reader(io.StringIO(head, newline="")), [])
    if not any(columns):
        raise ConfigError(f"bill {path} is empty: fetch it again, or take it away")
    twice = [name for at, name in enumerate(columns) if name in columns[:at]]
    if twice:
        raise ConfigError(f"bill {path} has two columns {twice[0]!r}: take one out")
    types = ", ".join(f"{_text(name)}: 'VARCHAR'" for name in columns)
    source = (
        "read_csv(?, auto_detect=false, header=true, delim=',', quote='\"', escape='\"', "
        f"compression='{packed}', columns={{{types}}})"
    )
    return Table(path, tuple(columns), ("*",), source, 2)


def _described(path: Path, source: str) -> Table:
    import duckdb

    try:
        with _connected() as connection:
            query = connection.execute(f"select * from {source} limit 0", [str(path)])
            found = [each for name, kind, *_ in query.description or () for each in
                     _fields(name, _quoted(name), kind)]  # fmt: skip
    except duckdb.Error as error:
        raise _explained(path, error) from None
    names, cells = zip(*found, strict=True) if found else ((), ())
    return Table(path, names, cells, source, 1)


def _fields(name: str, path: str, kind: Any) -> list[tuple[str, str]]:
    """Return the names and expressions of a column: of a structure, those of its fields."""
    if kind.id == "struct" and name not in _MAPS:
        return [
            each
            for child, of in kind.children
            for each in _fields(f"{name}.{child}", f"{path}.{_quoted(child)}", of)
        ]
    if kind.id in ("list", "map", "struct"):
        return [(name, f"cast(to_json({path}) as varchar)")]
    return [(name, f"cast({path} as varchar)")]


def _connected() -> Any:
    import duckdb

    connection = duckdb.connect()
    # Two threads would not make a stream of texts faster, and order is wanted.
    connection.execute("set threads = 1")
    connection.execute("set TimeZone = 'UTC'")
    return connection


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _explained(path: Path, error: Exception) -> ConfigError:
    said = str(error)
    cells = _CELLS.search(said)
    if cells:
        return ConfigError(
            f"bill {path}:{cells[1]} has not as many cells as columns: fetch it again"
        )
    encoding = _ENCODING.search(said)
    return _of_another_encoding(path, int(encoding[1])) if encoding else _damaged(path)


def _of_another_encoding(path: Path, line: int) -> ConfigError:
    return ConfigError(f"bill {path}:{line} is not UTF-8: save the file as `CSV UTF-8`")


def _damaged(path: Path) -> ConfigError:
    return ConfigError(f"bill {path} is damaged or its end is missing: fetch it again")
