"""The steps of a canvas: what runs one after the other, and what side by side. Pure.

A chain of chains, groups and chords is a list of steps. A step is one task, or several lists of
steps side by side. Arguments, options and callbacks that were given to a whole are in its tasks.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from late.celery.exceptions import NotSupported

CALLBACKS = ("link", "link_error")


class Leaf(Protocol):
    """One task to call. `late.celery.Signature` satisfies it."""

    type: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    immutable: bool

    @property
    def task(self) -> str: ...
    def clone(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any: ...
    def steps(self) -> Steps: ...


class Side(NamedTuple):
    """Steps that run side by side. The step after it gets the list of their results."""

    members: tuple[Steps, ...]


Steps: TypeAlias = "list[Leaf | Side]"


def listed(options: Mapping[str, Any], name: str) -> list[Any]:
    """Return the calls of `link` or `link_error`, which may be one or several."""
    found = options.get(name)
    if found is None:
        return []
    return list(found) if isinstance(found, list | tuple) else [found]


def options_of(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the first tasks, and the callbacks, without those that are None."""
    told = {key: value for key, value in given.items() if value is not None}
    return (
        {key: value for key, value in told.items() if key not in CALLBACKS},
        {key: value for key, value in told.items() if key in CALLBACKS},
    )


def begin(steps: Steps, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Steps:
    """Give the first tasks more arguments and options.

    The task after a group gets the options too, but the delay, as the body of Celery's chord does.
    """
    if not (args or kwargs or options):
        return steps
    first, *rest = steps
    if not isinstance(first, Side):
        return [first.clone(args, kwargs, **options), *rest]
    members = tuple([begin(member, args, kwargs, options) for member in first.members])
    if rest:
        now = {key: value for key, value in options.items() if key not in ("countdown", "eta")}
        rest = begin(rest, (), {}, now)
    return [Side(members), *rest]


def fixed(steps: Steps) -> Steps:
    """Let the first tasks ignore arguments that are given later."""
    first, *rest = steps
    if isinstance(first, Side):
        return [Side(tuple(map(fixed, first.members))), *rest]
    changed = first.clone()
    changed.immutable = True
    return [changed, *rest]


def add_callbacks(steps: Steps, options: Mapping[str, Any], *, from_step: int = 0) -> Steps:
    """Give `link` to the last task, and `link_error` to all from the step `from_step` on.

    Raises:
        TypeError: the last step is a group, which Celery refuses too.
        NotSupported: `link_error` would be for the tasks of a group.
    """
    links, errbacks = (listed(options, name) for name in CALLBACKS)
    found = list(steps)
    for at, step in enumerate(found[from_step:] if errbacks else (), from_step):
        if isinstance(step, Side):
            raise NotSupported(
                "link_error of a group or of a chain with one: Celery calls it for each task that"
                " fails, a workflow once. Give it to the body of a chord, or catch the error"
            )
        both = [*listed(step.options, "link_error"), *errbacks]
        found[at] = step.clone(link_error=both)
    if links:
        last = found[-1]
        if isinstance(last, Side):
            raise TypeError("Cannot add link to group: use a chord")
        found[-1] = last.clone(link=[*listed(last.options, "link"), *links])
    return found


def linked(steps: Steps) -> Steps:
    """Return the steps that the links of the last task are; they follow it.

    Raises:
        NotSupported: another task has a link, or one is no call of a task.
    """
    last = steps[-1]
    for leaf in leaves(steps):
        if leaf is not last and listed(leaf.options, "link"):
            raise NotSupported(
                f"{leaf.task}: link of a task that others follow, or in a group: put a group into"
                " the chain, or let the task call the other one"
            )
    links = [] if isinstance(last, Side) else listed(last.options, "link")
    if not links:
        return []
    for link in links:
        if not hasattr(link, "steps"):
            raise NotSupported(f"link is one task, such as task.s(), got {link!r:.60}")
    whole = [_whole(link.steps()) for link in links]
    return whole[0] if len(whole) == 1 else [Side(tuple(whole))]


def _whole(steps: Steps) -> Steps:
    return [*steps, *linked(steps)]


def leaves(steps: Sequence[Leaf | Side]) -> Iterator[Leaf]:
    """Yield all tasks, in their order."""
    for step in steps:
        if isinstance(step, Side):
            for member in step.members:
                yield from leaves(member)
        else:
            yield step


def check_nested(steps: Steps) -> None:
    """Refuse a group at the end of a part of a group that another step follows.

    Raises:
        NotSupported: Celery gives that step a list of lists, a workflow one list.
    """
    for at, step in enumerate(steps):
        for member in step.members if isinstance(step, Side) else ():
            check_nested(member)
            if at < len(steps) - 1 and isinstance(member[-1], Side):
                raise NotSupported(
                    "a chain that ends in a group cannot be part of a group that a task follows:"
                    " give it a task at its end, which gets the list"
                )


def errback_of(steps: Steps) -> Leaf | None:
    """Return the one task that runs if any of them fails; None: they have none.

    Raises:
        NotSupported: only some of them have it, they have several, or Celery calls it otherwise.
    """
    found = [listed(leaf.options, "link_error") for leaf in leaves(steps)]
    if not any(found):
        return None
    header = steps[0] if isinstance(steps[0], Side) else None
    inside = 0 if header is None else len(list(leaves([header])))
    if any(found[:inside]) or any(isinstance(step, Side) for step in steps[1:]):
        raise NotSupported(
            "link_error of a task in a group: Celery calls it for each task that fails, a workflow"
            " once. Give it to the body of the chord, or catch the error in the task"
        )
    first, *rest = found[inside:]
    if len(first) != 1 or any(each != first for each in rest):
        raise NotSupported("link_error is one task, the same for all tasks of a chain with its"
                           " links: give it to the chain")  # fmt: skip
    (errback,) = first
    with_error = takes_error(errback)
    if header is not None and not errback.immutable and not with_error:
        raise NotSupported(f"{errback.task}: link_error of a chord gets the id of its body from"
                           f" Celery, and not of the task that failed: use .si(...)")  # fmt: skip
    found_one: Leaf = errback
    return found_one


def takes_error(errback: Any) -> bool:
    """Return whether an errback gets `(request, exc, traceback)`, and not the id alone.

    Raises:
        NotSupported: it takes more than the id, and not these three.

    Source: `Backend._call_task_errbacks` of Celery 5, which calls such a function itself. One with
    `bind=True` gets the id there too.
    """
    if getattr(errback, "type", None) is None:
        raise NotSupported("link_error is one task, such as task.s()")
    if errback.immutable or errback.type.is_bound:
        return False
    try:
        taken = inspect.getfullargspec(partial(errback.type.run, *errback.args, **errback.kwargs))
    except TypeError:  # They do not fit the function.
        taken = inspect.getfullargspec(errback.type.run)
    if not taken.varargs and len(taken.args) <= 1:
        return False
    try:
        inspect.signature(errback.type.run).bind(None, None, None, *errback.args, **errback.kwargs)
    except TypeError as error:
        raise NotSupported(
            f"{errback.task}: a link_error takes the id of the failed task alone, or"
            f" (request, exc, traceback) before its own arguments: {error}"
        ) from None
    return True
