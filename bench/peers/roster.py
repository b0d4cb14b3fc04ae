"""The peers that are measured: `peers.toml` as values. Pure but for reading that file."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
FILE = HERE / "peers.toml"
ADAPTERS = HERE / "adapters"


@dataclass(frozen=True, slots=True)
class Peer:
    """One queue under measurement; the fields are explained in `peers.toml`."""

    name: str
    title: str
    kind: Literal["self", "python", "node"]
    adapter: str
    left: str | tuple[str, ...]
    docs: str
    same_transaction: bool
    settings: str
    durability: str
    packages: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    share: float = 1.0
    redis: bool = False

    @property
    def program(self) -> Path:
        return ADAPTERS / self.adapter


def read(file: Path = FILE) -> dict[str, Peer]:
    """Every peer by its name, in the file's order.

    Raises:
        TypeError: an entry lacks a field, or has one that nobody knows.
    """
    with file.open("rb") as source:
        return {name: _peer(name, entry) for name, entry in tomllib.load(source).items()}


def _peer(name: str, entry: dict[str, Any]) -> Peer:
    fixed = {
        key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
    }
    return Peer(name=name, **fixed)


def chosen(names: Sequence[str], roster: dict[str, Peer]) -> list[Peer]:
    """Those that were asked for, late among them in any case: it is what ratios are of.

    Raises:
        KeyError: a name that is not in the roster.
    """
    if not names:
        return list(roster.values())
    unknown = set(names) - set(roster)
    if unknown:
        raise KeyError(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(roster)}")
    return [peer for name, peer in roster.items() if name in names or name == "late"]
