"""Calls as values: `Signature` of one task, and what `chain`, `group` and `chord` make of several.

`canvas/` makes workflows of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from late.celery.canvas.draft import run_here, send
from late.celery.canvas.steps import (
    CALLBACKS,
    Side,
    Steps,
    add_callbacks,
    begin,
    fixed,
    listed,
    options_of,
)
from late.celery.exceptions import NotSupported

C = TypeVar("C", bound="Canvas")


class Canvas(msgspec.Struct, kw_only=True):
    """The base of all of them. Only `set`, `link` and `link_error` change one."""

    options: Mapping[str, Any] = {}
    immutable: bool = False
    """Ignore arguments that are given later."""

    def set(self: C, immutable: bool | None = None, **options: Any) -> C:
        """Change its options in place, and return it."""
        self.options = {**self.options, **options}
        self.immutable = self.immutable if immutable is None else immutable
        return self

    def link(self, callback: Any) -> Any:
        """Let `callback` run with its result when it is done, and return `callback`."""
        self.options = {**self.options, "link": [*listed(self.options, "link"), callback]}
        return callback

    def link_error(self, errback: Any) -> Any:
        """Let `errback` run with the id of the task that fails, and return `errback`."""
        found = [*listed(self.options, "link_error"), errback]
        self.options = {**self.options, "link_error": found}
        return errback

    def on_error(self: C, errback: Any) -> C:
        """Do as `link_error`, and return this call."""
        self.link_error(errback)
        return self

    def __or__(self, other: object) -> Any:
        """Return the chain of both."""
        return chain(self, other) if isinstance(other, Canvas) else NotImplemented

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueue it with these arguments before those of its first tasks; see `apply_async`."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """Enqueue it in the transaction that is open, and return the result of its last part.

        The options are for the first tasks, as in Celery, and `link` is for the last one.

        Raises:
            NotSupported: Celery does something otherwise than workflows of `late`.
            Other errors of `Task.apply_async`. Nothing is enqueued then.
        """
        return send(self.whole(args, kwargs, options))

    def apply(
        self, args: Any = (), kwargs: Any = None, *, throw: bool | None = None, **options: Any
    ) -> Any:
        """Run all of it here, and return the outcome of its last part; see `Task.apply`."""
        return run_here(self.whole(args, kwargs, options), throw=throw)

    def whole(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Steps:
        """Return its steps with these arguments and options.

        Raises:
            TypeError, NotSupported: see `apply_async`.
        """
        firsts, callbacks = options_of({**self.options, **options})
        found = self._called(self._parts(), callbacks)
        if not found:
            return []
        return begin(found, () if self.immutable else args, kwargs, firsts)

    def steps(self) -> Steps:
        """Return its steps as a part of another call.

        Raises:
            NotSupported: it has options that only its tasks may have.
        """
        others, callbacks = options_of(self.options)
        if others:
            raise NotSupported(f"{self!r:.200}: {', '.join(others)}: inside of another call set it"
                               " at the tasks")  # fmt: skip
        return self._called(self._parts(), callbacks)

    def _parts(self) -> Steps:
        """Return its steps without its own options. Each kind has its own way."""
        return []

    def _called(self, steps: Steps, callbacks: Mapping[str, Any]) -> Steps:
        return add_callbacks(steps, callbacks) if steps else steps


class Signature(Canvas):
    """A task with arguments and options, to be called later.

    Arguments that are given later stand before its own, and keywords and options replace its own.
    """

    type: Any
    """The task."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}

    @property
    def task(self) -> str:
        """The name of the task."""
        return str(self.type.name)

    def __repr__(self) -> str:
        named = [f"{key}={value!r}" for key, value in self.kwargs.items()]
        return f"{self.task}({', '.join([*map(repr, self.args), *named])})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task here."""
        call = self.clone(args, kwargs)
        return self.type(*call.args, **call.kwargs)

    def clone(self, args: Any = (), kwargs: Any = None, **options: Any) -> Signature:
        """Return a copy with more arguments and options."""
        changed: dict[str, Any] = {"options": {**self.options, **options}}
        if not self.immutable:
            changed["args"] = (*(args or ()), *self.args)
            changed["kwargs"] = {**self.kwargs, **(kwargs or {})}
        return msgspec.structs.replace(self, **changed)

    def apply_async(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """See `Task.apply_async`."""
        call = self.clone(args, kwargs, **options)
        return self.type.apply_async(call.args, call.kwargs, **call.options)

    def apply(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """See `Task.apply`."""
        call = self.clone(args, kwargs, **options)
        if any(call.options.get(name) for name in CALLBACKS):
            return run_here([call], throw=call.options.get("throw"))
        return self.type.apply(call.args, call.kwargs, **call.options)

    def whole(self, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Steps:
        return [self.clone(args, kwargs, **options)]

    def steps(self) -> Steps:
        return [self]


class _Parts(Canvas):
    """Several calls."""

    tasks: tuple[Canvas, ...]


class Chain(_Parts):
    """Calls that run one after the other, each with the result of the one before."""

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.tasks))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Enqueue it; see `apply_async`."""
        return self.apply_async(args, kwargs)

    def _parts(self) -> Steps:
        return [step for task in self.tasks for step in _unrolled(task)]


class Group(_Parts):
    """Calls that run side by side."""

    def __repr__(self) -> str:
        return f"group({list(self.tasks)!r})"

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Enqueue it; see `apply_async`."""
        return self.apply_async(args, **options)

    def __len__(self) -> int:
        return len(self.tasks)

    def _parts(self) -> Steps:
        members = [member for task in self.tasks for member in _members(task)]
        return [Side(tuple(map(fixed, members) if self.immutable else members))] if members else []

    def __or__(self, other: object) -> Any:
        """Return the chord of both: `other` gets a list, also of a single result."""
        return chord(self, other) if isinstance(other, Canvas) else NotImplemented


class Chord(Canvas):
    """Calls side by side, and one that gets the list of their results when all are done."""

    header: Group
    body: Canvas | None = None

    def __repr__(self) -> str:
        return f"chord({list(self.header.tasks)!r}, {self.body!r})"

    def __call__(self, body: Canvas | None = None, **options: Any) -> Any:
        """Enqueue it with this body; see `apply_async`."""
        whole = self if body is None else msgspec.structs.replace(self, body=copy(body))
        return whole.apply_async(**options)

    def _parts(self) -> Steps:
        if self.body is None:
            raise TypeError("chord needs a body: chord(header)(body)")
        header, body = self.header.steps(), _unrolled(self.body)
        if not header:
            return begin(body, ([],), {}, {})
        return [*(fixed(header) if self.immutable else header), *body]

    def _called(self, steps: Steps, callbacks: Mapping[str, Any]) -> Steps:
        return add_callbacks(steps, callbacks, from_step=1 if self.header.tasks else 0)


def _unrolled(call: Canvas) -> Steps:
    """Return the steps of a part of a chain: a group of one task is that task, as in Celery."""
    if isinstance(call, Group) and len(call.tasks) == 1:
        return _unrolled(call.tasks[0])
    return call.steps()


def _members(call: Canvas) -> list[Steps]:
    """Return the steps of a part of a group, or those of each part if it is a group too."""
    found = call.steps()
    if isinstance(call, Group):
        return [member for step in found if isinstance(step, Side) for member in step.members]
    return [found] if found else []


def copy(call: Any) -> Canvas:
    """Return a copy, which a later `set` of the original does not change.

    Raises:
        TypeError: it is no call as a value.
    """
    if not isinstance(call, Canvas):
        raise TypeError(f"a call as a value is needed, such as task.s(...), got {call!r:.80}")
    return msgspec.structs.replace(call)


def _given(tasks: tuple[Any, ...]) -> Iterable[Any]:
    if len(tasks) == 1 and isinstance(tasks[0], Iterable) and not isinstance(tasks[0], Canvas):
        return list(tasks[0])
    return tasks


def chain(*tasks: Any, **options: Any) -> Chain:
    """Return the calls one after the other: `chain(a.s(1), b.s())`, or of one list.

    Raises:
        TypeError: there are none, or one is no call as a value.
    """
    found = tuple(map(copy, _given(tasks)))
    if not found:
        raise TypeError("chain() needs at least one call")
    return Chain(tasks=found, options=options)


def group(*tasks: Any, **options: Any) -> Group:
    """Return the calls side by side: `group(a.s(1), b.s(2))`, or of one list or generator.

    Raises:
        TypeError: one is no call as a value.
    """
    return Group(tasks=tuple(map(copy, _given(tasks))), options=options)


def chord(header: Any, body: Any = None, **options: Any) -> Chord:
    """Return calls side by side with a `body` that gets the list of their results.

    Raises:
        TypeError: one is no call as a value.
    """
    tasks = header.tasks if isinstance(header, Group) else _given((header,))
    inner = header.options if isinstance(header, Group) else {}
    side = Group(tasks=tuple(map(copy, tasks)), options=inner)
    return Chord(header=side, body=None if body is None else copy(body), options=options)
