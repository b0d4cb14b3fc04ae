"""Tasks that another service executes: a pool of slots of their own for every target.

A remote task is an async handler whose function calls the target. So time-outs, cancelling,
stopping, fencing and the report of outcomes are those of `dispatcher.py`, and a target that hangs
holds slots of its own pool and nobody else's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from late.dispatcher.dispatcher import Dispatcher
from late.dispatcher.handler import Handler
from late.dispatcher.push import responses
from late.dispatcher.push.job import Caller, job_of
from late.dispatcher.push.recorder import Recorder
from late.errors import DecodeError
from late.handler.classify import DONE, RetryRule, Scrub, Verdict
from late.handler.context import AsyncContext
from late.model import validation as validate
from late.model.targets import GrpcTarget, Target
from late.model.task import Options, Outcome, Record
from late.payload import codec as codecs
from late.payload import values as payloads

NO_CODEC = ""
"""The codec of a payload in JSON."""
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_map = msgspec.msgpack.Decoder(dict[str, Any]).decode


class RemoteHandler:
    """A task as the dispatcher runs it: instead of a function, the call of its target."""

    process = False
    is_async = True
    wants_context = True
    soft_timeout_s = None
    overlap_on_timeout = False

    def __init__(
        self,
        name: str,
        caller: Caller,
        *,
        timeout_s: float | None = None,
        retry: RetryRule | None = None,
        codec: codecs.Codec = codecs.JSON,
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self.retry = retry
        self.codec = codec
        self._caller = caller

    def decode(self, record: Record, options: Options | None) -> Mapping[str, Any]:
        """Return the payload as the target gets it: opened, checked to be an object, not taken
        apart."""
        if not validate.is_name(record.name):
            message = f"task name {validate.shown(record.name)} is no name"
            raise DecodeError(message, reason="invalid_name")
        payload, form = codecs.opened(self.codec, record, options)
        payloads.unpack(payload, _decode_map if form == "msgpack" else _decode_object, form)
        return {"payload": payload, "codec": NO_CODEC if form == "json" else form}

    async def fn(self, context: AsyncContext, *, payload: bytes, codec: str) -> Verdict:
        """Call the target, and return the verdict as it is recorded. In a shadow call nobody."""
        if context.shadow:
            return DONE
        verdict = await self._caller.call(job_of(context, payload, codec))
        return responses.as_recorded(verdict, context.own)


class RemoteHandlers(Mapping[str, Handler]):
    """A handler for every name: a whole queue can be given to a target, whatever is in it."""

    def __init__(self, tasks: Mapping[str, Any], caller: Caller, codec: codecs.Codec) -> None:
        """
        Args:
            tasks: the registered ones, with their time-outs, retry policies and codecs.
            codec: for tasks that are not registered.
        """
        self._tasks = tasks
        self._caller = caller
        self._codec = codec

    def call_by(self, caller: Caller) -> None:
        """Take another way to the target from now on."""
        self._caller = caller

    def __getitem__(self, name: str) -> RemoteHandler:
        task = self._tasks.get(name)
        if task is None:
            return RemoteHandler(name, self._caller, codec=self._codec)
        return RemoteHandler(
            name, self._caller, timeout_s=task.timeout_s, retry=task.retry, codec=task.codec
        )

    def __contains__(self, name: object) -> bool:
        # False for names that are not registered: those come from the database without a bound,
        # so nobody may keep the handlers that he gets for them.
        return name in self._tasks

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)


class RemotePool(Dispatcher):
    """The slots of one target."""

    def __init__(
        self,
        target: Target,
        tasks: Mapping[str, Any],
        *,
        codec: codecs.Codec = codecs.JSON,
        worker_id: str,
        now_us: Callable[[], int],
        on_finished: Callable[[list[Outcome]], None],
        url: str,
        trusted: Callable[[], bool] = lambda: True,
        rng: random.Random | None = None,
        scrub: Scrub | None = None,
        caller: Caller | None = None,
    ) -> None:
        """Make the slots, as `Dispatcher`; `tasks` are the registered ones that go to `target`."""
        rng = rng or random.Random()
        self.target = target
        self.names = sorted(tasks)
        """The registered tasks that go there."""
        self._caller: Caller = caller or caller_of(target, rng=rng, scrub=scrub)
        self._remote = RemoteHandlers(tasks, self._caller, codec)
        super().__init__(
            self._remote,
            name=target.name,
            worker_id=worker_id,
            concurrency=target.concurrency,
            now_us=now_us,
            on_finished=on_finished,
            url=url,
            trusted=trusted,
            process_workers=0,
            rng=rng,
            scrub=scrub,
        )

    @property
    def room(self) -> int:
        """Slots that are free; none once it stops."""
        return 0 if self._draining else self.free

    def record(self) -> None:
        """Call the target never, and say that all is done: this worker serves a shadow."""
        self._caller = Recorder()
        self._remote.call_by(self._caller)

    async def start(self) -> None:
        """
        Raises:
            ConfigError: as `Caller.start`.
        """
        await self._caller.start()
        await super().start()

    async def stop(self, grace_s: float) -> None:
        await super().stop(grace_s)
        await self._caller.close()


def caller_of(target: Target, *, rng: random.Random, scrub: Scrub | None = None) -> Caller:
    """Make the way to `target`. It imports its library when it is started, not before."""
    if isinstance(target, GrpcTarget):
        from late.dispatcher.push.grpc_caller import GrpcCaller

        return GrpcCaller(target, rng=rng, scrub=scrub)
    from late.dispatcher.push.http_caller import HttpCaller

    return HttpCaller(target, scrub=scrub)
