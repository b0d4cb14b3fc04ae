"""Options of the data source as text: where a tail behind a lake begins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from late.model.task import Usage

if TYPE_CHECKING:
    from late_spark.live import Known


def after_text(after: Mapping[tuple[str, int], int]) -> str:
    """The option `after`: (group, shard) -> the last settlement that is known."""
    return json.dumps([[group, shard_id, seq] for (group, shard_id), seq in sorted(after.items())])


def after_of(text: str | None) -> dict[tuple[str, int], int]:
    """The reverse of `after_text`."""
    return {(group, int(shard)): int(seq) for group, shard, seq in json.loads(text or "[]")}


def known_text(known: Known) -> str:
    """The option `known`: (group, shard) -> counts that are in a row and not wanted."""
    rows = [(group, shard_id, *rest) for (group, shard_id), rest in sorted(known.items())]
    return msgspec.json.encode(rows).decode()


def known_of(text: str | None) -> Known:
    """The reverse of `known_text`."""
    rows = msgspec.json.decode(text or "[]", type=list[tuple[str, int, int, tuple[Usage, ...]]])
    return {(group, shard_id): (begins, usage) for group, shard_id, begins, usage in rows}
