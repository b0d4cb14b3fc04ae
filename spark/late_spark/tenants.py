"""The tenant behind an unusual day. A second look at the usage, at these days' tasks only.

The sums of a report do not tell tenants apart, for they are as many as customers. The engine
finds the one that differs most, so that only one for each question comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from late_spark import relation
from late_spark.anomalies import Span
from late_spark.calendar import Calendar
from late_spark.relation import Relation, total

_EPOCH = date(1970, 1, 1)


def behind(usage: Relation, calendar: Calendar, spans: Sequence[Span]) -> dict[Span, str]:
    """Say for each span which tenant's tasks differ most from those of other days, a day.

    Nothing is said where no tenant is recorded."""
    if not spans:
        return {}
    answer = usage.ask(_statement(calendar, spans), **_names(spans))
    rows = zip(*(answer[name] for name in ("span", "tenant", "off", "whole")), strict=True)
    return {
        spans[at]: f"tenant {tenant} is {off / whole:.0%} of the difference"
        for at, tenant, off, whole in sorted(rows)
        if whole
    }


def _names(spans: Sequence[Span]) -> dict[str, str]:
    """Return the parameters of the statement: names are a stranger's, and never its text."""
    found: dict[str, str] = {}
    for at, span in enumerate(spans):
        found |= {f"queue{at}": span.queue, f"name{at}": span.name}
    return found


def _statement(calendar: Calendar, spans: Sequence[Span]) -> str:
    """Ask for the tenant of each span whose `off` is the largest, and for the sum of all.

    `off` is the difference a day, times the days in the span and those beside it: a whole number.
    """
    asked = []
    for at, span in enumerate(spans):
        first, last = ((day - _EPOCH).days for day in (span.first, span.last))
        days = last - first + 1
        rest = max(1, len(calendar.days) - days)
        asked.append(
            f"select {at} as span, :queue{at} as queue, :name{at} as name, {first} as first_day,"
            f" {last} as last_day, {days} as days, {rest} as rest"
        )
    return f"""
        with asked as ({" union all ".join(asked)}),
        ended as (
            select queue, name, tenant, {relation.day(calendar)} as day,
                {relation.ENDED} as ended
            from usage where {relation.within(calendar)}
        ),
        differences as (
            select span, tenant,
                {
        total(
            "case when day between first_day and last_day then ended * rest else -ended * days end"
        )
    } as off
            from ended join asked on ended.queue = asked.queue and ended.name = asked.name
            group by span, tenant
        ),
        ranked as (
            select span, tenant, off, cast(sum(off) over (partition by span) as bigint)
                as whole,
                row_number() over (
                    partition by span
                    order by case when tenant is null or tenant = '' then 1 else 0 end,
                        abs(off) desc, tenant desc
                ) as place
            from differences
        )
        select span, tenant, off, whole from ranked
        where place = 1 and tenant is not null and tenant <> ''
    """
