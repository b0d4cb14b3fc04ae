"""Suggestions of the search box: what is known by its name, the likeliest first. Pure.

Nothing is read for it: names come from the look that all visitors share. Keys and tenants are in no
list, so any text may be one: the list of tasks looks for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import quote

import msgspec

from late.model.access.rights import Caller
from late.web.navigation import Section
from late.web.snapshot import Snapshot

TEXT_MAX = 128
"""Characters of a text that are looked for."""
MOST = 10
"""The most suggestions, without those of keys and tenants."""
_TASK_ID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")
_WORD = re.compile(r"[^0-9a-z]+")


class Suggestion(msgspec.Struct, frozen=True):
    """One thing that was found."""

    kind: str
    name: str
    href: str
    """The address, relative to the root of the page."""


def suggestions(
    text: str,
    seen: Snapshot,
    *,
    caller: Caller,
    sections: Iterable[Section],
    schedules: Iterable[str] = (),
    tasks: Mapping[str, str] | None = None,
) -> list[Suggestion]:
    """List what a text may mean for this caller, of whose queues the snapshot is.

    Args:
        sections: the screens that the caller may open.
        schedules: their names, of the caller's queues.
        tasks: names of tasks, each with its queue.
    """
    wanted = text.strip()[:TEXT_MAX]
    if not wanted:
        return []
    if _TASK_ID.fullmatch(wanted.lower()):
        return [Suggestion("task", wanted, f"tasks/{wanted}")]
    known = [
        *_named("queue", _queues(seen), lambda name: f"queues/{_in_path(name)}"),
        *_tasks({**_reported(seen, caller), **(tasks or {})}, caller),
        *_named("schedule", schedules, lambda name: f"schedules?after={_in_path(_before(name))}"),
    ]
    if caller.may_all("view"):
        known += _of_all(seen)
    known += _screens(sections)
    ranked = ((_rank(wanted.lower(), each.name.lower()), n, each) for n, each in enumerate(known))
    found = sorted((rank, n, each) for rank, n, each in ranked if rank is not None)
    return [each for _, _, each in found[:MOST]] + _everywhere(wanted)


def _rank(wanted: str, name: str) -> int | None:
    """Return how well a name fits: 0 is the same; None does not fit."""
    if name == wanted:
        return 0
    if name.startswith(wanted):
        return 1
    if any(word.startswith(wanted) for word in _WORD.split(name)):
        return 2
    return 3 if wanted in name else None


def _screens(sections: Iterable[Section]) -> Iterator[Suggestion]:
    for section in sections:
        for screen in section.screens:
            yield Suggestion("screen", screen.name, screen.path)


def _queues(seen: Snapshot) -> list[str]:
    return sorted({*seen.queues, *(each.queue for each in seen.status.queues)})


def _named(kind: str, names: Iterable[str], href: Callable[[str], str]) -> Iterator[Suggestion]:
    return (Suggestion(kind, name, href(name)) for name in names)


def _reported(seen: Snapshot, caller: Caller) -> dict[str, str]:
    """Return the names of tasks that run, wait at a limit or find no handler, with their queues."""
    found = {run.task: run.queue for each in seen.reports for run in each.report.runs}
    found |= {each.task: each.queue for each in seen.status.limited}
    found |= {each.task: each.queue for each in seen.status.unhandled}
    return {name: queue for name, queue in found.items() if caller.may("view", queue)}


def _tasks(names: Mapping[str, str], caller: Caller) -> Iterator[Suggestion]:
    for name, queue in sorted(names.items()):
        if caller.may("view", queue):
            yield Suggestion(
                "task name", name, f"tasks?queue={_in_path(queue)}&name={_in_path(name)}"
            )


def _of_all(seen: Snapshot) -> Iterator[Suggestion]:
    """Yield what only those see who see every queue."""
    yield from _named("group", [each.name for each in seen.groups],
                      lambda name: f"groups/{_in_path(name)}")  # fmt: skip
    targets = {t.name for each in seen.reports for t in each.report.targets} | {*seen.targets}
    yield from _named("target", sorted(targets), lambda name: f"targets/{_in_path(name)}")
    for worker in seen.status.workers:
        yield Suggestion("worker", worker.worker_id, "workers")
        yield Suggestion("worker", worker.address, "workers")


def _everywhere(wanted: str) -> list[Suggestion]:
    """Return the looks for tasks by what is in no list: their ordering key and their tenant."""
    return [
        Suggestion(f"tasks by {field}", wanted, f"tasks?state=parked&{field}={_in_path(wanted)}")
        for field in ("key", "tenant")
    ]


def _before(name: str) -> str:
    """Return a text before which no shorter name than this one stands: its page begins there."""
    return name[:-1]


def _in_path(text: str) -> str:
    return quote(text, safe="")
