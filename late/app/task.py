"""Registered functions and calls of them: `Task`, `Prepared` (a task with options), `Call`.

Nothing here uses a database. A `Call` holds encoded, checked arguments: wrong arguments raise an
error when the call is made.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    TypeVar,
    Unpack,
    overload,
)

import msgspec

from late.app import mistakes
from late.app.mistakes import FORGOTTEN, check_transaction
from late.app.options import Settings, TaskOptions, settings
from late.app.results import kept
from late.errors import ConfigError, DecodeError, InvalidPayload, InvalidTask, PayloadTooLarge
from late.handler.enqueuer import Enqueuer
from late.handler.outcomes import Retry
from late.handler.signature import Signature, scalars
from late.model.task import Options, Policy, Record, TaskId
from late.model.validation import is_name
from late.outbox.base import AsyncTransaction, SyncTransaction
from late.payload import codec as codecs
from late.payload import models
from late.payload import values as payloads

if TYPE_CHECKING:
    from late.app.workflows import Then

P = ParamSpec("P")
R = TypeVar("R")


class Call(msgspec.Struct, frozen=True, gc=False):
    """One task to enqueue, for `app.enqueue_many`. A call that is enqueued twice is two tasks."""

    app: Enqueuer
    name: str
    queue: str
    codec: codecs.Codec
    values: object
    payload: bytes
    """The encoded arguments. They are not sealed, because a seal is made for an id."""
    settings: Settings
    task: Task[Any, Any] | None = None
    """The registered task; None for a call by name."""


class Task(Generic[P, R]):
    """A registered function, made by `@app.task`. A call of it calls the function.

    Without the database, an enqueue with three small arguments takes about 3 µs: more than half of
    it for the id, and a fifth for the encoding of the arguments.
    """

    parameters = ""
    """A text that belongs to the fingerprint of the arguments, beside their shape."""
    _test: Callable[[Mapping[str, Any]], None] | None = None

    def __init__(
        self,
        app: Enqueuer,
        fn: Callable[..., R],
        signature: Signature,
        *,
        name: str,
        queue: str,
        retry: Retry,
        timeout_s: float,
        process: bool,
        soft_timeout_s: float | None = None,
        overlap_on_timeout: bool = False,
        priority: int,
        lane: str | None = None,
        codec: codecs.Codec,
        target: str = "local",
        result_ttl_s: float | None = None,
        history: bool = False,
        batch: int | None = None,
        transaction: bool = False,
    ) -> None:
        self.app = app
        self.fn: Callable[..., Any] = fn
        """The function that a worker calls."""
        self.passes_result = result_ttl_s is not None
        """A workflow can pass its result on: it is kept, or `fn` returns `Kept` for a stage."""
        self._own = fn
        self.name = name
        self.queue = queue
        self.retry = retry
        self.timeout_s = timeout_s
        self.process = process
        self.soft_timeout_s = soft_timeout_s
        self.overlap_on_timeout = overlap_on_timeout
        self.batch = batch
        """The most tasks of one call of the function; None for a plain task."""
        self.transaction = transaction
        """Its handler shares a transaction with the record of its end."""
        self.codec = codec
        self.policy: Policy = msgspec.structs.replace(
            retry.policy(queue), target=target, history=history
        )
        if result_ttl_s is not None:
            ttl_us = max(1, round(result_ttl_s * 1_000_000))
            self.policy = msgspec.structs.replace(self.policy, result_ttl_us=ttl_us)
            self.fn = kept(fn, is_async=signature.is_async)
        self.is_async = signature.is_async
        self.wants_context = signature.wants_context
        self.shape = signature.shape
        stored: Any = dict[str, Any] if self.shape is dict else self.shape
        self._decoders = _decoders(stored)
        self._has_defaults = bool(getattr(self.shape, "__struct_defaults__", ()))
        plain = codec is codecs.JSON and self.shape is not dict
        self._plain = self._decoders["json"] if plain else None
        """The decoder of a payload without options and without a seal."""
        self._check = self._decoders[codec.format]
        self._scalars = scalars(self.shape) if codec.format == "json" else None
        self._ints = _ints(self.shape) if plain else None
        """The arguments that may be an int, where all are text, int, bool or None: no other limit
        can be broken by those that the decoder lets through."""
        stored_as = None if codec.name == "json" else codec.name
        self.base = Options(priority=priority, codec=stored_as)
        self.lane = lane
        """The lane of its tasks; None: `default`."""
        self._settings = settings({}, self.base, lane=lane)
        self.__name__ = name
        self.__qualname__ = fn.__qualname__
        self.__module__ = fn.__module__
        self.__doc__ = fn.__doc__

    def __repr__(self) -> str:
        return f"<Task {self.name} queue={self.queue}>"

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """Call the function directly, as in a test: without queue, payload or retry."""
        return self._own(*args, **kwargs)

    @overload
    def enqueue(self, tx: SyncTransaction, /, *args: P.args, **kwargs: P.kwargs) -> TaskId: ...
    @overload
    def enqueue(
        self, tx: AsyncTransaction, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, TaskId]: ...
    def enqueue(self, tx: Any = FORGOTTEN, /, *args: Any, **kwargs: Any) -> Any:
        """Insert one task through the caller's transaction `tx`. It runs if that commits.

        Checks are made first, before any SQL, and in this call even if `tx` is async: after an
        `InvalidTask` the transaction is unchanged. The row costs one statement.

        Returns:
            The task's id, or an awaitable of it if `tx` is async.

        Raises:
            InvalidTask: the input is wrong (subclasses tell why), the type of `tx` is not
                accepted, or it is in autocommit mode with no open transaction.
            QueueFull: the queue's published depth has reached its bound.
            KeyConflict: a task with another body holds `unique_key`.
            SchemaMismatch: the tables are missing or have another version.
        """
        try:
            return self.app.enqueue(tx, self.call(*args, **kwargs))
        except InvalidTask as error:
            check_transaction(tx, self.name, error)
            if type(error) is InvalidTask:  # It is about the transaction.
                raise mistakes.named(error, self.name) from error.__cause__
            raise

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Make the call as a value, for `app.enqueue_many`.

        Raises:
            InvalidPayload, PayloadTooLarge: the arguments do not fit the task.
        """
        # This is the code of `Prepared.call`. It is not shared, because large batches make many of
        # these calls.
        values, payload = self.encode(args, kwargs)
        return Call(
            self.app, self.name, self.queue, self.codec, values, payload, self._settings, self
        )

    def then(self, *args: P.args, **kwargs: P.kwargs) -> Then:
        """Make a call for a workflow, with `late.RESULT` among its arguments.

        Raises:
            InvalidPayload: another argument does not fit the task.
            InvalidTask: there is no `late.RESULT`, or the task has another codec than JSON.
        """
        from late.app.workflows import then

        return then(self, self._settings, args, kwargs)

    def options(self, **asked: Unpack[TaskOptions]) -> Prepared[P, R]:
        """Return the task with options: `task.options(delay=60).enqueue(tx)`.

        Raises:
            InvalidSchedule, InvalidPolicy, InvalidName, InvalidPayload, PayloadTooLarge: an
                option is out of bounds.
        """
        try:
            return Prepared(self, settings(asked, self.base, self.codec, self.lane))
        except InvalidTask as error:
            raise mistakes.named(error, self.name) from error.__cause__
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[object, bytes]:
        """Return the arguments as the checked payload struct, and its bytes without a seal.

        The worker's decoder checks the bytes, unless it is certain that it can read them. So a
        worker can read every task that is enqueued.

        Raises:
            InvalidPayload, PayloadTooLarge: the arguments do not fit the task.
        """
        try:
            values: Any = self.shape(*args, **kwargs)
        except (TypeError, ValueError) as cause:
            raise InvalidPayload(f"{self.name}: {cause}{self._meant(args, kwargs)}") from None
        try:
            if self._scalars is None:
                payload, certain = payloads.pack(values, self.codec.format), False
            else:
                payload, certain = payloads.pack_call(values, self._scalars)
        except InvalidPayload as error:
            where = payloads.culprit(values, self.codec.format)
            meant = self._meant(args, kwargs)
            raise InvalidPayload(f"{self.name}{where}: {error}{meant}") from error.__cause__
        except PayloadTooLarge as error:
            raise PayloadTooLarge(f"{self.name}: {error}") from None
        if not certain:
            try:
                self._check(payload)
            except Exception as cause:  # The checks of a type may raise any error.
                why = str(cause)[:200]
                where, meant = mistakes.parameter(why), self._meant(args, kwargs)
                raise InvalidPayload(f"{self.name}{where}: {why}{meant}") from cause
        return values, payload

    def _meant(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        fields = getattr(self.shape, "__struct_fields__", ())
        return mistakes.arguments(args, kwargs, fields, TaskOptions.__annotations__)

    def test_arguments(self, test: Callable[[Mapping[str, Any]], None], parameters: str) -> None:
        """Let `test` refuse stored arguments that fit the shape.

        Args:
            test: raises a DecodeError.
            parameters: what is another text if it refuses others.
        """
        self._test, self.parameters = test, parameters
        self._plain = None  # The quick way does not test.

    def decode(self, record: Record, options: Options | None) -> dict[str, Any]:
        """Return the keyword arguments of a stored task, without the context.

        Raises:
            DecodeError: `reason` is `payload_too_large`, `undecodable`, `bad_signature` or
                `invalid_name`.
        """
        read, ints, payload = self._plain, self._ints, record.payload
        if (
            read is not None
            and (options is None or options.codec is None)
            and is_name(record.queue)
            and len(payload) <= payloads.PAYLOAD_BYTES_MAX
            and (payloads.BACKSLASH not in payload or payloads.has_no_nul(payload))
            and (ints is not None or payloads.is_harmless(payload))
        ):  # The same as below with fewer calls: the way of nearly all.
            try:
                found = msgspec.structs.asdict(read(payload))
                if not ints or payloads.fit(found, ints):
                    return _given(found) if self._has_defaults else found
            except Exception:  # The way below says why. # nosec B110
                pass
        payload, form = codecs.opened(self.codec, record, options)
        return self.arguments(payload, form)

    def check_stage(self, record: Record, options: Options | None, mark: str) -> None:
        """Check the arguments of a stage that waits. Those that a result replaces may be anything.

        Args:
            mark: the JSON text that the result replaces.

        Raises:
            DecodeError: see `decode`.
        """
        payload, form = codecs.opened(self.codec, record, options)
        self.arguments(payload, form, _without_results(self.shape, payload, mark))

    def arguments(
        self,
        payload: bytes,
        form: payloads.Format,
        decode: Callable[[bytes], Any] | None = None,
    ) -> dict[str, Any]:
        """Return the keyword arguments in a payload that is not sealed.

        Args:
            decode: instead of the decoder of its own arguments.

        Raises:
            DecodeError: see `decode`. The message has the task's name, and the parameter.
        """
        try:
            values = payloads.unpack(payload, decode or self._decoders[form], form)
        except DecodeError as error:
            error.args = (f"{self.name}{mistakes.parameter(str(error))}: {error}",)
            raise
        found = values if isinstance(values, dict) else msgspec.structs.asdict(values)
        if self._test is not None:
            self._test(found)
        return _given(found) if self._has_defaults else found


def _decoders(shape: Any) -> dict[payloads.Format, Callable[[bytes], Any]]:
    """Return the decoders of stored arguments."""
    return {
        "json": msgspec.json.Decoder(shape, dec_hook=models.decode).decode,
        "msgpack": msgspec.msgpack.Decoder(shape, dec_hook=models.decode).decode,
    }


def _without_results(
    shape: type[msgspec.Struct] | type[dict[str, Any]], payload: bytes, mark: str
) -> Callable[[bytes], Any] | None:
    """Return a decoder for which the arguments that are `mark` may be anything."""
    try:
        given = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return None  # Its own decoder says why.
    if not issubclass(shape, msgspec.Struct):
        return None
    marked = [
        (name, Any)
        for name in shape.__struct_fields__
        if name in given and bytes(given[name]) == mark.encode()
    ]
    opened = msgspec.defstruct(
        shape.__name__, marked, bases=(shape,), kw_only=True, forbid_unknown_fields=True
    )
    return _decoders(opened)["json"]


def _ints(shape: type[msgspec.Struct] | type[dict[str, Any]]) -> tuple[str, ...] | None:
    """Return the fields that may be an int, or None if one may be more than text, int or bool."""
    kinds = scalars(shape)
    if kinds is None or not issubclass(shape, msgspec.Struct):
        return None
    if not all(each and each <= payloads.SIMPLE for each in kinds):
        return None
    names = [field.name for field in msgspec.structs.fields(shape)]
    return tuple(name for name, each in zip(names, kinds, strict=True) if int in each)


def _given(found: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments without those that the payload leaves to the defaults."""
    if msgspec.UNSET not in found.values():
        return found
    return {key: value for key, value in found.items() if value is not msgspec.UNSET}


def elsewhere(name: str, target: str, like: Callable[..., Any] | None) -> Callable[..., Any]:
    """Make the function of a remote task: it has the name of `like` and cannot be called."""

    def refuse(*_: object, **__: object) -> None:
        raise ConfigError(f"task {name!r} is executed by target {target!r}: nothing to call here")

    refuse.__qualname__ = name if like is None else like.__qualname__
    refuse.__module__ = "(remote)" if like is None else like.__module__
    refuse.__doc__ = None if like is None else like.__doc__
    return refuse


class Prepared(Generic[P, R]):
    """A task with options. It is immutable, and may be kept and enqueued any number of times."""

    __slots__ = ("_settings", "_task")

    def __init__(self, task: Task[P, R], checked: Settings) -> None:
        self._task = task
        self._settings = checked

    @overload
    def enqueue(self, tx: SyncTransaction, /, *args: P.args, **kwargs: P.kwargs) -> TaskId: ...
    @overload
    def enqueue(
        self, tx: AsyncTransaction, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, TaskId]: ...
    def enqueue(self, tx: Any = FORGOTTEN, /, *args: Any, **kwargs: Any) -> Any:
        """Insert one task with these options; see `Task.enqueue`."""
        try:
            return self._task.app.enqueue(tx, self.call(*args, **kwargs))
        except InvalidTask as error:
            name = self._task.name
            check_transaction(tx, name, error)
            if type(error) is InvalidTask:
                raise mistakes.named(error, name) from error.__cause__
            raise

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Make the call with these options; see `Task.call`."""
        task = self._task
        values, payload = task.encode(args, kwargs)
        return Call(
            task.app, task.name, task.queue, task.codec, values, payload, self._settings, task
        )

    def then(self, *args: P.args, **kwargs: P.kwargs) -> Then:
        """Make a call for a workflow with these options; see `Task.then`."""
        from late.app.workflows import then

        return then(self._task, self._settings, args, kwargs)
