"""Arrays as PostgreSQL reads them: byte for byte what psycopg makes of the same values."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.numeric import Int2

from late.model.ids import new_ids
from late.model.task import NewTask
from late.outbox.adapters.psycopg import NATIVE
from late.outbox.adapters.psycopg_arrays import pack


def by_driver(values: list[Any]) -> tuple[int, bytes]:
    dumper = Transformer().get_dumper(values, PyFormat.BINARY)
    made = dumper.dump(values)
    assert made is not None
    return dumper.oid, bytes(made)


def ours(kind: str, values: list[Any]) -> tuple[int, bytes]:
    packed = pack(kind, values)
    return packed.oid, packed.data


@given(st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1))
def test_of_small_numbers(values: list[int]) -> None:
    assert ours("smallint", values) == by_driver([Int2(value) for value in values])


@given(st.lists(st.uuids(), min_size=1))
def test_of_ids(values: list[uuid.UUID]) -> None:
    assert ours("uuid", [str(value) for value in values]) == by_driver(values)


@given(st.lists(st.binary(), min_size=1))
def test_of_bytes(values: list[bytes]) -> None:
    assert ours("bytea", values) == by_driver(values)


@pytest.mark.parametrize("alike", [True, False])
def test_ids_shards_and_payloads_of_a_bulk_are_packed(alike: bool) -> None:
    ids = new_ids([0, 1])
    queues = ["a", "a" if alike else "b"]
    rows = [NewTask(n, ids[n], queues[n], "name", b"{}") for n in range(2)]
    packed = [one for one in NATIVE.tasks(rows).params if not isinstance(one, str | list)]
    assert [one.oid for one in packed if one is not None] == [1005, 2951, 1001]
