"""Celery's own tests, from its source distribution, have the outcomes that the docs tell of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import celery_page
from tests.support.celery_suite import RUN, NoSource, Outcome, run, source

QUICK = [part for part in RUN if "::" in part]
"""The parts of a few seconds."""


@pytest.fixture(scope="module")
def archive() -> Path:
    try:
        return source()
    except NoSource as error:
        pytest.skip(f"no source distribution of Celery: {error}")


@pytest.fixture(scope="module")
def page() -> str:
    return celery_page.PAGE.read_text()


def differing(outcomes: list[Outcome], page: str) -> list[str]:
    """Return the lines of the outcomes' page that the page does not have."""
    known = set(page.splitlines())
    return [line for line in celery_page.body(outcomes).splitlines() if line not in known]


def test_results_and_shared_tasks_pass_celerys_tests(archive: Path, page: str) -> None:
    outcomes = run(archive, *QUICK)
    for line in differing(outcomes, page):
        # The sums, and reasons that tests of other parts have too.
        assert line.startswith(("`late.celery` in place", "| ")), line
    passed = {each.test for each in outcomes if each.outcome == "passed"}
    assert len(passed) >= 10


@pytest.mark.timeout(3_000)
def test_celerys_tests_have_the_outcomes_of_the_page(archive: Path, page: str) -> None:
    outcomes = {each.test: each for each in run(archive)}
    listed = celery_page.passing(page)
    # A test of Celery's has limits of time: what a busy machine failed gets another turn.
    again = [
        name
        for name, each in outcomes.items()
        if each.outcome != "passed" and name.partition("[")[0].rpartition("::")[2] in listed
    ]
    if again:
        outcomes |= {each.test: each for each in run(archive, *again)}
    assert not differing(list(outcomes.values()), page), "python -m tests.support.celery_page"


def test_a_failure_without_a_reason_is_no_page() -> None:
    with pytest.raises(celery_page.NoReason):
        celery_page.body([Outcome("t/unit/tasks/test_tasks.py::test_new", "failed", "KeyError: 1")])
