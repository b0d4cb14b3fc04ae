"""Read a handler's signature: the shape of its payload, and whether it takes a context.

The shape is a msgspec struct with one field per parameter. Its constructor checks the arguments of
a call (missing, unknown, given twice) in C. Its decoder checks their types, also in the producer,
so that a worker can read every payload that was enqueued.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Set
from typing import Any

import msgspec

from late.errors import ConfigError
from late.handler.batch import BATCH_MAX, Batch
from late.payload import models
from late.payload.values import SCALARS

_Kind = inspect.Parameter
Shape = type[msgspec.Struct] | type[dict[str, Any]]


class Signature(msgspec.Struct, frozen=True):
    """The signature of a handler, as `read` returns it."""

    shape: Shape
    """A parameter with a default may be left out. It is then not sent, so that the default in the
    code that runs the task applies, as in a call."""
    wants_context: bool
    is_async: bool


ANYTHING = Signature(dict, wants_context=False, is_async=False)
"""The signature of a task whose handler is not known here: it takes any arguments, by name."""


def read(fn: Callable[..., Any], label: str) -> Signature:
    """Read the signature of handler `fn`; `label` names it in messages.

    Raises:
        ConfigError: it is not a plain function; it has positional-only or variable parameters, an
            annotation that cannot be resolved or decoded, or a context that is not the first
            parameter or is for the other kind of function.
    """
    if not inspect.isfunction(fn):
        raise ConfigError(f"{label}: a task is a function, not {type(fn).__name__}")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigError(f"{label}: a task cannot be a generator")
    is_async = inspect.iscoroutinefunction(fn)
    hints = _hints(fn, label)
    parameters = list(inspect.signature(fn).parameters.values())
    wants_context = bool(parameters) and _is_context(hints.get(parameters[0].name))
    if wants_context:
        first = parameters.pop(0)
        _check_context(hints[first.name], is_async, label)
    for parameter in parameters:
        _check_parameter(parameter, hints.get(parameter.name), label)
    return Signature(_shape(parameters, hints, label), wants_context, is_async)


def read_batch(fn: Callable[..., Any], label: str, size: int) -> Signature:
    """Read the signature of a batch handler, whose only parameter is a `late.Batch[...]`.

    The shape is that of the argument of one task.

    Raises:
        ConfigError: see `read`; or the signature is another one, or `size` is not 1..1,000.
    """
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= BATCH_MAX:
        raise ConfigError(f"{label}: batch must be 1..{BATCH_MAX}, got {size!r:.40}")
    if not inspect.isfunction(fn):
        raise ConfigError(f"{label}: a task is a function, not {type(fn).__name__}")
    hints = list(_hints(fn, label).items())
    given = list(inspect.signature(fn).parameters.values())
    hint = hints[0][1] if len(hints) == len(given) == 1 else None
    if typing.get_origin(hint) is not Batch:
        raise ConfigError(f"{label}: batch= takes a function of one late.Batch[...]")
    (kind,) = typing.get_args(hint)
    item = inspect.Parameter("item", _Kind.POSITIONAL_OR_KEYWORD, annotation=kind)
    is_async = inspect.iscoroutinefunction(fn)
    return Signature(_shape([item], {"item": kind}, label), wants_context=False, is_async=is_async)


def scalars(shape: Shape) -> tuple[Set[type], ...] | None:
    """List, for each field of `shape`, the types of values that its decoder returns unchanged.

    Types are exact. A field has no such types if its decoder converts or checks values, as for a
    list, an enumeration or a bounded number. The result is None if the arguments have no shape.
    """
    if not issubclass(shape, msgspec.Struct):
        return None
    return tuple(
        _scalars(field.type) - {msgspec.UnsetType} if field.required else _scalars(field.type)
        for field in msgspec.structs.fields(shape)
    )


def _scalars(hint: Any) -> Set[type]:
    if hint is Any:
        return SCALARS
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        each = [_scalars(one) for one in typing.get_args(hint)]
        return frozenset[type]().union(*each) if all(each) else frozenset()
    hint = getattr(hint, "__supertype__", hint)  # The type below a NewType.
    return SCALARS & {hint} if isinstance(hint, type) else frozenset()


def _hints(fn: Callable[..., Any], label: str) -> dict[str, Any]:
    plain = inspect.unwrap(fn)
    # The return type is left out: it is not needed, and perhaps only type checkers can import it.
    carrier = types.SimpleNamespace(
        __annotations__={k: v for k, v in plain.__annotations__.items() if k != "return"}
    )
    try:
        return typing.get_type_hints(carrier, globalns=plain.__globals__, include_extras=True)
    except Exception as cause:
        raise ConfigError(
            f"{label}: an annotation cannot be resolved ({cause}); types of task parameters must"
            " be importable at run time, at module level"
        ) from cause


def _is_context(hint: Any) -> bool:
    # An annotation with a context needs its module. If that is not imported, `hint` is no context.
    module = sys.modules.get("late.handler.context")
    return (
        module is not None
        and isinstance(hint, type)
        and issubclass(hint, module.Context | module.AsyncContext)
    )


def _check_context(hint: type, is_async: bool, label: str) -> None:
    module = sys.modules["late.handler.context"]
    wanted = module.AsyncContext if is_async else module.Context
    if not issubclass(hint, wanted):
        kind = "an async def" if is_async else "a plain def"
        raise ConfigError(f"{label}: {kind} takes late.{wanted.__name__}, not {hint.__name__}")


def _check_parameter(parameter: inspect.Parameter, hint: Any, label: str) -> None:
    name = parameter.name
    if parameter.kind is _Kind.POSITIONAL_ONLY:
        raise ConfigError(
            f"{label}: parameter {name!r} is positional-only, but arguments are stored by name"
        )
    if parameter.kind in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD):
        raise ConfigError(f"{label}: {parameter} has no fixed names; take a list or a dict instead")
    if _is_context(hint):
        raise ConfigError(f"{label}: the context {name!r} must be the first parameter")


def _shape(
    parameters: list[inspect.Parameter], hints: dict[str, Any], label: str
) -> type[msgspec.Struct]:
    positional = [p for p in parameters if p.kind is not _Kind.KEYWORD_ONLY]
    keyword = [p for p in parameters if p.kind is _Kind.KEYWORD_ONLY]
    found = ""
    try:
        shape = msgspec.defstruct(
            label, [_field(p, hints) for p in positional], forbid_unknown_fields=True
        )
        if keyword:
            fields = [_field(p, hints) for p in keyword]
            shape = msgspec.defstruct(
                label, fields, bases=(shape,), kw_only=True, forbid_unknown_fields=True
            )
        for parameter in parameters:
            found = parameter.name
            msgspec.json.schema_components([hints.get(found, Any)], schema_hook=_schema)
        msgspec.json.Decoder(shape)
    except _NoDecoder as cause:
        hint = "use built-in types, dataclasses, TypedDicts, msgspec structs or pydantic models"
        if cause.kind is Batch:
            hint = "a function of a batch is declared with batch=N"
        elif models.is_row(cause.kind):
            hint = "it is a row of a table: take its id"
        raise ConfigError(
            f"{label}: parameter {found!r} of type {cause} cannot be decoded; {hint}"
        ) from None
    except TypeError as cause:
        raise ConfigError(
            f"{label}: the type of parameter {found!r} cannot be decoded: {cause}"
        ) from cause
    return shape


def _field(parameter: inspect.Parameter, hints: dict[str, Any]) -> Any:
    hint = hints.get(parameter.name, Any)
    if parameter.default is _Kind.empty:
        return (parameter.name, hint)
    return (parameter.name, typing.Union[hint, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007


class _NoDecoder(Exception):
    """A type that neither msgspec nor a hook of ours decodes."""

    def __init__(self, kind: type) -> None:
        super().__init__(getattr(kind, "__name__", str(kind)))
        self.kind = kind


def _schema(kind: type) -> dict[str, Any]:
    if not models.is_model(kind):
        raise _NoDecoder(kind)
    return models.schema(kind)
