"""Budgets of months (YAML): of everything, and of each that bears a part.

```yaml
version: 1
by: owner                      # what the parts are; --by of the close
total: 9000
parts: {payments: 5000, growth: 2500}
months:                        # that differ
  2026-12: {total: 12000, parts: {payments: 7000}}
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Literal

import msgspec

from late.errors import ConfigError
from late_spark import pricebook

TOTAL = "Total"
"""The name of everything, among those that have a budget."""


class _Month(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    total: Decimal | None = None
    parts: dict[str, Decimal] = {}


class _File(_Month, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: Literal[1]
    by: str = "owner"
    months: dict[str, _Month] = {}


@dataclass(frozen=True)
class Budget:
    """The budget of one month, in units."""

    total: int | None = None
    parts: Mapping[str, int] = field(default_factory=dict)


def load(path: Path, month: str, by: str) -> Budget:
    """Read the budget of a month.

    Args:
        by: what the close is by; the file's parts must be of the same.

    Raises:
        ConfigError: unreadable, no YAML, an unknown field, no amount, or of another dimension.
    """
    file = _read(path)
    chosen = file.months.get(month)
    total = chosen.total if chosen and chosen.total is not None else file.total
    parts = file.parts | (chosen.parts if chosen else {})
    if parts and file.by != by:
        raise ConfigError(
            f"budgets {path} are by {file.by}, and the close is by {by}: give --by {file.by}"
        )
    return Budget(
        None if total is None else _units(total, f"budgets {path}: total"),
        {name: _units(each, f"budgets {path}: {name}") for name, each in parts.items()},
    )


def owners(path: Path) -> dict[str, str]:
    """Return who has a budget in any month, with the owner that it names; empty: none.

    Raises:
        ConfigError: as `load`.
    """
    file = _read(path)
    of = [file, *file.months.values()]
    parts = sorted({name for each in of for name in each.parts})
    found = {name: name if file.by == "owner" else "" for name in parts}
    return {**({TOTAL: ""} if any(each.total is not None for each in of) else {}), **found}


def _read(path: Path) -> _File:
    import yaml

    try:
        found = yaml.load(path.read_text(encoding="utf-8"), pricebook.unique_loader())  # nosec B506
        return msgspec.convert(found, _File, strict=False)
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or "is no text"
        raise ConfigError(f"budgets {path}: {said}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"budgets {path} is not YAML: {' '.join(str(error).split())}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"budgets {path}: {error}") from None


def _units(amount: Decimal, what: str) -> int:
    return pricebook.budget(str(amount), what)
