"""The page `docs/celery-tests.md`: which of Celery's own tests pass, and why the others do not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.celery_suite import RUN, VERSION, Outcome, source

PAGE = Path(__file__).resolve().parents[2] / "docs" / "celery-tests.md"

OUTSIDE = {
    "`t/integration/test_canvas.py`, `test_group_chains.py`, `t/unit/tasks/test_canvas.py`, "
    "`test_chord.py`, `test_stamping.py`": "canvases, by the inside of Celery and of its backends",
    "other files of `t/integration`": "Celery's backends, worker, remote control and log",
    "other classes of `t/unit/app/test_app.py`": "configuration, broker and pools of Celery's app",
    "other classes of `t/unit/tasks/test_result.py`": "results in Celery's backends",
    "other files of `t/unit/app` and `t/unit/tasks`": "the inside of Celery's parts",
    "`t/unit/app/test_schedules.py`, `test_beat.py`": "`late celery beat` reads Celery's objects",
    "other folders": "backends, worker, command line, concurrency and broker of Celery",
}
"""What is not run -> the reason."""

REASONS = (
    (r"test_class_based_task_retried", "the task is registered after the worker has started"),
    (r"test_pool_acquire_timeout|redis_result_backend", "the broker's pool; the backend on Redis"),
    (r"test_task_replacement", "`replace` is a workflow"),
    (r"test_tasks::test_fail$|test_task_failed$|stores_failure|test_wrong_arguments",
     "a result that failed raises `TaskEnded`, not the task's own error"),
    (r"unpickleable", "an error is kept as one line of text, and pickled nowhere"),
    (r"test_tasks::test_retry$", "a task that waits for its retry is `PENDING`"),
    (r"requeue_redelivers", "`redelivered` tells of a worker's death alone, not of `requeue=True`"),
    (r"retry_switches", "a retry has the arguments of the task"),
    (r"retried_priority", "`delivery_info` has no priority"),
    (r"test_send_task_without_ignore", "reads the state of Celery's worker"),
    (r"test_unicode_task", "`group`"),
    (r"test_replace_(callback|chain|group)", "a task cannot replace itself by a canvas"),
    (r"test_can_wrap", "a decorator makes a task of a function once"),
    (r"test_on_replace", "a name is taken once; the error is `ConfigError`"),
    (r"eager_serialization|uses_task_serializer", "the error is `InvalidPayload`; JSON alone"),
    (r"ignored_result$|with_result$|zero_priority|default_priority|shadow_name$",
     "looks at what Celery's app would send"),
    (r"request_context_is_ok", "`hostname` has the number of the process too"),
    (r"respects_ignore_result", "results of `apply` are kept nowhere"),
    (r"limit_sets_request_fields|keeps_timelimit_none|inherits_time_limit",
     "reads the inside of a request or a task"),
    (r"retry_kwargs_not_mutated", "reads the inside of Celery's function"),
    (r"routing_attribute_deprecation", "Celery warns of options that it gives up"),
    (r"repr_v2_compat|unpickle_task", "tasks are not pickled, and have no older form"),
    (r"soft_time_limit_(failure|exceeding)", "refused where the task is made: `ConfigError`"),
    (r"retried_once_with_expires", "a retry keeps the task's `expires`"),
)  # fmt: skip
"""A part of a test's name -> the reason why it fails."""


class NoReason(Exception):
    """A test fails, and nobody has written down why."""


def reason(outcome: Outcome) -> str:
    """Return why a test does not pass.

    Raises:
        NoReason: nobody has written it down.
    """
    if outcome.outcome == "skipped":
        return "Celery skips it"
    if outcome.outcome == "absent":
        return f"`{outcome.said}` is not there"
    name = outcome.test.partition("[")[0]
    for pattern, why in REASONS:
        if re.search(pattern, name):
            return why
    if outcome.outcome == "refused":
        text = (outcome.said.partition(": ")[2] or outcome.said).split(": ")[0]
        return f"refused: {text}"
    raise NoReason(f"{outcome.test}: {outcome.said}")


def body(outcomes: Sequence[Outcome]) -> str:
    """Return the page.

    Raises:
        NoReason: see `reason`.
    """
    passed = [each for each in outcomes if each.outcome == "passed"]
    others: dict[str, list[Outcome]] = {}
    for each in outcomes:
        if each.outcome != "passed":
            others.setdefault(reason(each), []).append(each)
    lines = [
        "# Celery's own tests",
        "",
        f"`late.celery` in place of Celery, in the tests of Celery {VERSION}: of {len(outcomes)}"
        f" that use calls which it has, {len(passed)} pass.",
        "",
        "`python -m tests.support.celery_page` downloads the source distribution, runs the tests on"
        " SQLite and writes this page; a test compares it.",
        "",
        "| file | tests | pass |",
        "|---|--:|--:|",
        *(
            f"| `{path}` | {of_all} | {of_passed} |"
            for path, of_all, of_passed in _counts(outcomes)
        ),
        "",
        "## Why the others do not pass",
        "",
        "| reason | tests |",
        "|---|---|",
        *(f"| {why} | {_names(found)} |" for why, found in sorted(others.items(), key=_by_size)),
        "",
        "## What is not run",
        "",
        "| tests | about |",
        "|---|---|",
        *(f"| {what} | {why} |" for what, why in OUTSIDE.items()),
        "",
        "## What passes",
        "",
        *(f"- `{part}`: {_names(of_part)}" for part in RUN if (of_part := _of(passed, part))),
        "",
    ]
    return "\n".join(lines)


def _counts(outcomes: Iterable[Outcome]) -> list[tuple[str, int, int]]:
    every = list(outcomes)
    return [
        (part, len(found), sum(each.outcome == "passed" for each in found))
        for part in RUN
        if (found := _of(every, part))
    ]


def _of(outcomes: Iterable[Outcome], part: str) -> list[Outcome]:
    return [each for each in outcomes if each.test.startswith(f"{part}::")]


def _names(found: Iterable[Outcome]) -> str:
    counted = Counter(each.test.partition("[")[0].rpartition("::")[2] for each in found)
    return ", ".join(
        f"`{name}`" + (f" ({count} cases)" if count > 1 else "")
        for name, count in sorted(counted.items())
    )


def _by_size(row: tuple[str, list[Outcome]]) -> tuple[int, str]:
    return -len(row[1]), row[0]


def passing(page: str) -> set[str]:
    """Return the names that the page lists as passing."""
    return set(re.findall(r"`(test_\w+)`", page.partition("## What passes")[2]))


if __name__ == "__main__":
    from tests.support.celery_suite import run

    PAGE.write_text(body(run(source())))
