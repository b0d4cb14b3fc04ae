"""The tenant behind unusual days, found among many by a second look at the usage."""

from __future__ import annotations

from datetime import date

import pytest
from late_spark import tenants
from late_spark.anomalies import Span
from late_spark.calendar import Calendar

from tests.spark.conftest import Related
from tests.spark.usage_kit import BERLIN, row

DAYS = Calendar.of("2026-03", "2026-04", BERLIN)
CALM = [date(2026, 3, day) for day in range(2, 12)]
STORM = date(2026, 3, 12)


def at(day: date) -> str:
    return f"{day}T12:00:00Z"


@pytest.fixture(scope="module")
def found(related: Related) -> dict[Span, str]:
    # Given tenants with ten tasks a day, of which one has two hundred more in a storm
    rows = [
        row(at(day), "mail", "send", "done", 10 + extra * (day == STORM), tenant=tenant)
        for day in (*CALM, STORM)
        for tenant, extra in (("acme", 200), ("globex", -10), ("initech", 0))
    ]
    # attempts that go on are no ended tasks; other tasks and tenants that nobody names do not count
    rows += [row(at(STORM), "mail", "send", "retried", 9_000, tenant="globex")]
    rows += [row(at(STORM), "pay", "charge", "done", 9_000, tenant="globex")]
    rows += [row(at(STORM), "plain", "work", "done", 9_000)]
    spans = [Span("mail", "send", STORM, STORM), Span("plain", "work", STORM, STORM)]
    return tenants.behind(related(rows), DAYS, spans)


def test_the_one_that_differs_most_is_named(found: dict[Span, str]) -> None:
    # Of 30 other days in the range, ten have ten tasks: 210 - 100/30 of acme, 0 - 100/30 of globex,
    # and 10 - 100/30 of initech are 206.67 of 210
    assert found == {Span("mail", "send", STORM, STORM): "tenant acme is 98% of the difference"}


def test_nothing_asked_is_nothing_read() -> None:
    assert tenants.behind(None, DAYS, []) == {}  # type: ignore[arg-type]
