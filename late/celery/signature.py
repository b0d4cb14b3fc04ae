"""`Signature`: the call of a task as a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from late.celery.exceptions import NotSupported

_NO_WORKFLOWS = (
    "there are no workflows: call the next task in the one before, and both commit together"
    " (docs/celery-tasks.md)"
)


class Signature(msgspec.Struct):
    """A task with arguments and options, to be called later. Only `set` changes it.

    Arguments that are given later stand before its own, and keywords and options replace its own.
    """

    type: Any
    """The task."""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    immutable: bool = False
    """Ignore arguments that are given later."""

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

    def set(self, immutable: bool | None = None, **options: Any) -> Signature:
        """Change its options in place, and return it."""
        self.options = {**self.options, **options}
        self.immutable = self.immutable if immutable is None else immutable
        return self

    def __or__(self, other: object) -> Any:
        """Refuse a chain.

        Raises:
            NotSupported: always.
        """
        raise NotSupported(f"{self.task}: {_NO_WORKFLOWS}")

    def link(self, call: object) -> Any:
        """Refuse a call at the end of the task; raises as `|` does."""
        return self | call

    on_error = link_error = link

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """See `Task.delay`."""
        return self.apply_async(args, kwargs)

    def apply_async(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """See `Task.apply_async`."""
        call = self.clone(args, kwargs, **options)
        return self.type.apply_async(call.args, call.kwargs, **call.options)

    def apply(self, args: Any = (), kwargs: Any = None, **options: Any) -> Any:
        """See `Task.apply`."""
        call = self.clone(args, kwargs, **options)
        return self.type.apply(call.args, call.kwargs, **call.options)
