"""What handlers have counted with `ctx.count`, from the usage: counts of the business by day."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from fractions import Fraction

from late.errors import ConfigError
from late_spark import relation
from late_spark.calendar import Calendar
from late_spark.close.business import ALL, Metric
from late_spark.cost import NOBODY
from late_spark.relation import Columns, Relation, total

SOURCE = "the journal"


def load(
    usage: Relation, calendar: Calendar, names: Sequence[str], *, by_tenant: bool
) -> list[Metric]:
    """Read the counts of some names. A day before the first count of a name is not known, and one
    behind it without a count has none.

    Raises:
        ConfigError: a name that is given twice, or that nobody has counted.
    """
    if not names:
        return []
    if len(set(names)) < len(names):
        raise ConfigError("--counted: give each name once")
    found = _by_name(daily(usage, calendar), by_tenant=by_tenant)
    for name in names:
        if name not in found:
            known = ", ".join(sorted(found)[:8]) or "nothing"
            raise ConfigError(f"--counted {name[:64]}: no handler has counted it; counted: {known}")
    return [Metric(SOURCE, name, by_tenant, _filled(found[name], calendar.days)) for name in names]


def daily(usage: Relation, calendar: Calendar) -> Columns:
    """Add up the counts per local day, tenant and name."""
    return usage.ask(f"""
        select day, tenant, entry.key as name, {total("entry.value")} as number
        from (
            select {relation.day(calendar)} as day, tenant,
                explode(map_entries(counts)) as entry
            from usage where {relation.within(calendar)} and cardinality(counts) > 0
        ) as entries
        group by day, tenant, entry.key
    """)


_Days = dict[date, dict[str, Fraction]]


def _by_name(columns: Columns, *, by_tenant: bool) -> dict[str, _Days]:
    found: dict[str, _Days] = {}
    for day, tenant, name, number in zip(*columns.values(), strict=True):
        of = (tenant or NOBODY) if by_tenant else ALL
        counts = found.setdefault(name, {}).setdefault(date(1970, 1, 1) + timedelta(days=day), {})
        counts[of] = counts.get(of, Fraction(0)) + number
    return found


def _filled(counts: _Days, days: Sequence[date]) -> _Days:
    first = min(counts)
    return {day: counts.get(day, {}) for day in days if day >= first}
