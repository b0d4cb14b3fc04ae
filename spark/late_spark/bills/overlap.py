"""What must not be counted twice: two bills of one period, and parts that have the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from late.errors import ConfigError
from late_spark.calendar import iso
from late_spark.charges import Charge

_SAME = ("ResourceId", "SkuId", "SkuPriceId", "SubAccountId", "ChargeDescription", "ServiceName",
         "RegionId", "ConsumedQuantity", "Tags")  # fmt: skip
"""Columns that, with time and amount, tell rows apart. Text: a number may be written in two ways,
but the parts of one bill are written by one program."""


class Seen:
    """The rows that were read so far."""

    def __init__(self) -> None:
        self._periods: dict[tuple[str, str, int], dict[Path, tuple[Path, bool]]] = {}
        self._rows: dict[Path, dict[Path, set[int]]] = {}

    def add(self, delivery: Path, path: Path, row: Mapping[str, str], charge: Charge) -> None:
        """Take note of a row.

        Args:
            delivery: the `--bill` that the file `path` is a part of.
        """
        assert charge.period is not None
        provider = row.get("ProviderName") or row.get("ServiceProviderName", "")
        of = self._periods.setdefault((provider, row["BillingAccountId"], charge.period[0]), {})
        corrections = of.get(delivery, (path, True))[1] and charge.correction
        of[delivery] = (path, corrections)
        same = (charge.start_us, charge.end_us, charge.amount, charge.invoiced, charge.period,
                *(row.get(column, "") for column in _SAME))  # fmt: skip
        self._rows.setdefault(delivery, {}).setdefault(path, set()).add(hash(same))

    def check(self, delivery: Path, path: Path) -> None:
        """Check a file that was read to its end.

        Raises:
            ConfigError: an earlier bill has its period, or an earlier part most of its rows.
        """
        for (_, account, period), of in self._periods.items():
            whole = [mine for mine, (_, corrections) in of.items() if not corrections]
            if delivery in whole and len(whole) > 1:
                raise ConfigError(
                    f"bills {whole[0]} and {whole[-1]} overlap: both have the billing period "
                    f"{iso(period)} of the account {account}. Give the newer one, or put the "
                    "parts of one bill into one folder"
                )
        parts = self._rows.get(delivery, {})
        mine = parts.get(path, set())
        for other, rows in parts.items():
            shared = len(mine & rows) if other != path else 0
            if 2 * shared > min(len(mine), len(rows)):
                raise ConfigError(
                    f"bills {other} and {path} overlap: {shared:,} rows are in both. Take one away"
                )
