"""From rows of the store to the frames of `schema.py`, in Arrow: pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from late.errors import StoreError
from late.model.task import Usage
from late.model.usage_sums import difference

_decode = msgspec.json.Decoder(tuple[Usage, ...]).decode
_TIME = pa.timestamp("us", "UTC")
_HISTOGRAM = pa.map_(pa.int32(), pa.int64())
_COUNTS = pa.map_(pa.string(), pa.int64())
LAST_US = 253_402_300_799_000_000
"""The end of the year 9999: later times (that of a task which only its ordering key releases) are
no times."""

RAW = pa.schema(
    [
        ("consumer_group", pa.string()),
        ("shard_id", pa.int32()),
        ("seq", pa.int64()),
        ("settlement_id", pa.string()),
        ("epoch", pa.int64()),
        ("owner", pa.string()),
        ("cursor", pa.string()),
        ("open", pa.string()),
        ("usage", pa.string()),
        ("settled_at_us", pa.int64()),
        ("suspects", pa.string()),
        ("first_seq", pa.int64()),
        ("task_id", pa.string()),
        ("position", pa.int64()),
        ("sequence", pa.int64()),
        ("queue", pa.string()),
        ("name", pa.string()),
        ("payload", pa.binary()),
        ("headers", pa.string()),
        ("options", pa.string()),
        ("created_at_us", pa.int64()),
        ("dead_at_us", pa.int64()),
        ("due_at_us", pa.int64()),
        ("reason", pa.string()),
        ("held_key", pa.string()),
        ("attempts", pa.int32()),
        ("deaths", pa.int32()),
        ("errors", pa.string()),
    ]
)
"""Every column that is read of a store, by its name there."""
NEEDED = ["consumer_group", "shard_id", "seq", "epoch", "owner", "usage", "settled_at_us"]
"""The columns of the journal that its usage needs."""


def sources(columns: list[str]) -> list[str]:
    """The store's columns that the frame's `columns` come from; at least one."""
    found = dict.fromkeys(_source(name) for name in columns)
    return list(found) or ["shard_id"]


def _source(name: str) -> str:
    return f"{name}_us" if name.endswith("_at") else name


def placed(batch: pa.RecordBatch, columns: list[str]) -> pa.RecordBatch:
    """A batch of the store's columns as the frame's."""
    if not columns:
        return _counted(batch.num_rows)
    arrays = []
    for name in columns:
        values = batch.column(_source(name))
        arrays.append(_moments(values) if name.endswith("_at") else values)
    return pa.RecordBatch.from_arrays(arrays, names=columns)


def _moments(us: pa.Array) -> pa.Array:
    return pc.if_else(pc.less_equal(us, LAST_US), us, pa.scalar(None, pa.int64())).cast(_TIME)


def _counted(rows: int) -> pa.RecordBatch:
    """Rows without a column: what `count()` asks for."""
    return pa.RecordBatch.from_struct_array(pa.nulls(rows, pa.struct([])))


def _values(kind: pa.DataType, of: Callable[[Usage], Any]) -> Callable[[list[Usage]], pa.Array]:
    return lambda found: pa.array([of(each) for each in found], kind)


_OF_USAGE: Mapping[str, Callable[[list[Usage]], pa.Array]] = {
    "queue": _values(pa.string(), lambda u: u.queue),
    "name": _values(pa.string(), lambda u: u.name),
    "target": _values(pa.string(), lambda u: u.target),
    "outcome": _values(pa.string(), lambda u: u.outcome),
    "count": _values(pa.int64(), lambda u: u.count),
    "attempts": _values(pa.int64(), lambda u: u.attempts),
    "retries": _values(pa.int64(), lambda u: u.retries),
    "busy_us": _values(pa.int64(), lambda u: u.busy_us),
    "waiting_us": _values(pa.int64(), lambda u: u.waiting_us),
    "bytes": _values(pa.int64(), lambda u: u.payload_bytes),
    "lateness_us": _values(pa.int64(), lambda u: u.lateness_us),
    "delayed": _values(pa.int64(), lambda u: u.delayed),
    "tenant": _values(pa.string(), lambda u: u.tenant),
    "waiting_hist": lambda found: _histograms([each.waiting for each in found]),
    "busy_hist": lambda found: _histograms([each.busy for each in found]),
    "counts": _values(_COUNTS, lambda u: u.counts),
}
_OF_SETTLEMENT = {
    "settled_us": "settled_at_us",
    "consumer_group": "consumer_group",
    "shard_id": "shard_id",
    "seq": "seq",
    "epoch": "epoch",
    "worker": "owner",
}


def rows(
    batch: pa.RecordBatch,
    columns: list[str],
    queues: frozenset[str] | None,
    owners: Mapping[str, str],
    known: tuple[Usage, ...] = (),
) -> pa.RecordBatch:
    """The usage of settlements, one row per (queue, name, target, outcome, tenant).

    Args:
        known: counts that are in the first row and are not wanted.

    Raises:
        StoreError: a row of the journal whose usage cannot be read, with its name.
    """
    found: list[Usage] = []
    index: list[int] = []
    for place, text in enumerate(batch.column("usage").to_pylist()):
        if text is None:
            continue
        try:
            usages = _decode(text)
        except msgspec.MsgspecError as error:
            raise StoreError(f"{_name(batch, place)} has an unreadable usage: {error}") from error
        if place == 0 and known:
            try:
                usages = difference(usages, known)
            except ValueError as error:
                raise StoreError(f"{_name(batch, place)} has not what was read: {error}") from error
        for each in usages:
            if queues is None or each.queue in queues:
                found.append(each)
                index.append(place)
    if not columns:
        return _counted(len(found))
    of = pa.array(np.array(index, dtype=np.int64))
    arrays = []
    for name in columns:
        if name == "settled_at":
            arrays.append(_moments(batch.column("settled_at_us").take(of)))
        elif name in _OF_SETTLEMENT:
            arrays.append(batch.column(_OF_SETTLEMENT[name]).take(of))
        elif name == "owner":
            arrays.append(pa.array([owners.get(each.queue) for each in found], pa.string()))
        else:
            arrays.append(_OF_USAGE[name](found))
    return pa.RecordBatch.from_arrays(arrays, names=columns)


def _name(batch: pa.RecordBatch, place: int) -> str:
    group, shard_id, seq = (
        batch.column(name)[place] for name in ("consumer_group", "shard_id", "seq")
    )
    return f"settlement {seq} of {group}/{shard_id}"


def _histograms(found: list[tuple[tuple[int, int], ...]]) -> pa.Array:
    """Built from flat arrays: a map for each row as an object costs several times as much."""
    sizes = np.fromiter((len(each) for each in found), np.int32, len(found))
    offsets = np.zeros(len(found) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    flat = [value for each in found for pair in each for value in pair]
    pairs = np.array(flat, dtype=np.int64).reshape(-1, 2)
    return pa.MapArray.from_arrays(
        pa.array(offsets), pa.array(pairs[:, 0].astype(np.int32)), pa.array(pairs[:, 1].copy()),
        type=_HISTOGRAM,
    )  # fmt: skip
