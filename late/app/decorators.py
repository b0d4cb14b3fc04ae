"""The types of the decorators `@app.task(...)` and `@app.schedule(...)`, for type checkers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar, overload

from late.app.task import Task

if TYPE_CHECKING:
    from late.handler.batch import Batch
    from late.handler.context import AsyncContext, Context

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class BatchDecorator(Protocol):
    """The type of `@app.task(batch=...)`: a function of `Batch[T]` becomes a `Task` of one `T`."""

    def __call__(self, fn: Callable[[Batch[T]], R], /) -> Task[[T], R]: ...


class TaskDecorator(Protocol):
    """The type of `@app.task(...)`: a function becomes a `Task`, without the context parameter."""

    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[AsyncContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...


class ScheduleDecorator(Protocol):
    """The type of `@app.schedule(...)`: a function becomes a `Task`, and a `Task` is kept."""

    @overload
    def __call__(self, fn: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[AsyncContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...
