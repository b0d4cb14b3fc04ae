"""One operation: its path, its rule, its values, and the function that carries it out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from late.api import limits
from late.control import Control
from late.model.access.rights import Caller
from late.model.access.rules import Rule
from late.model.targets import Target

T = TypeVar("T")
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A request without values."""


@dataclass(frozen=True, slots=True)
class Ask(Generic[T]):
    """One request."""

    control: Control
    caller: Caller
    path: Mapping[str, str]
    """The names and ids in the path, each of them valid."""
    value: T
    """The query of a GET, and the body of all others."""
    group: str
    """The group of a request that names none."""
    targets: Mapping[str, Target] = field(default_factory=dict)
    """The targets that this process is configured with, by name."""


class Poll(NamedTuple, Generic[T]):
    """An answer that may have to be waited for."""

    look: Callable[[], T]
    """Reads once; it blocks for no longer than a read takes."""
    over: Callable[[T], bool]
    """Tells whether there is nothing left to wait for."""
    wait_s: float


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: Method
    path: str
    rule: Rule
    commands: tuple[str, ...]
    """The commands of `late` that do the same."""
    run: Callable[[Ask[Any]], object]
    """It blocks, and is called in a thread."""
    takes: type[msgspec.Struct]
    gives: Any
    most: int
    """Bytes of the body."""

    @property
    def changes(self) -> bool:
        """It may change something."""
        return self.method != "GET"

    @property
    def name(self) -> str:
        """The name in the OpenAPI document, such as `pauseGroup`."""
        first, *others = self.run.__name__.split("_")
        return first + "".join(word.capitalize() for word in others)

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        return (self.run.__doc__ or "").partition("\n")[0]


def operation(
    method: Method, path: str, rule: Rule, *commands: str, most: int = limits.OPERATOR_BYTES
) -> Callable[[Callable[[Ask[Any]], object]], Operation]:
    """Make an operation of a function, whose annotations say what it takes and gives."""

    def make(run: Callable[[Ask[Any]], object]) -> Operation:
        hints = get_type_hints(run)
        (takes,) = get_args(hints["ask"])
        gives = hints["return"]
        if get_origin(gives) is Poll:
            (gives,) = get_args(gives)
        return Operation(
            method=method, path=path, rule=rule, commands=commands, run=run, takes=takes,
            gives=gives, most=most,
        )  # fmt: skip

    return make
