"""`late`: a transactional task queue.

    app = late.App("postgresql+psycopg://localhost/shop")

    @app.task(queue="payments", retry=late.Retry(max_attempts=5))
    async def charge(ctx: late.AsyncContext, trip_id: int, amount: Decimal) -> None: ...

    with Session(engine) as session, session.begin():
        session.add(trip)
        charge.enqueue(session, trip.id, amount=Decimal("3.50"))

Names are imported when they are first used: `import late` itself is quick.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from late.api.handler_server import ServerTls, serve_handlers
    from late.api.http.signed_urls import sign_url
    from late.app.app import App
    from late.app.options import TaskOptions
    from late.app.results import Handle
    from late.app.task import Call, Task
    from late.app.workflows import RESULT, chain, chord, group
    from late.consumer.consumer import Consumer, ConsumerRefused
    from late.consumer.session import PulledTask
    from late.dispatcher.push.webhook_signature import BadSignature
    from late.dispatcher.push.webhook_signature import verify as verify_webhook
    from late.errors import (
        BatchTooLarge,
        ConfigError,
        DecodeError,
        InvalidCron,
        InvalidName,
        InvalidPayload,
        InvalidPolicy,
        InvalidSchedule,
        InvalidTask,
        KeyConflict,
        LateError,
        PayloadTooLarge,
        QueueFull,
        SchemaMismatch,
        SoftTimeLimit,
        StoreError,
        SubjectDropped,
        TaskEnded,
        UnknownTask,
    )
    from late.handler.batch import Batch, Item
    from late.handler.context import AsyncContext, Context
    from late.handler.outcomes import AlreadyDone, Discard, Nack, Retry, Signal, Snooze
    from late.model.targets import GrpcTarget, HttpTarget, Tls
    from late.model.task import TaskId
    from late.notify.notifier import wake
    from late.observability import logs as log
    from late.observability import traces as tracing
    from late.observability.conflicts import tag
    from late.outbox.watch import watch
    from late.payload import codec
    from late.payload.codec import Encrypted, Signed

__all__ = [
    "RESULT",
    "AlreadyDone",
    "App",
    "AsyncContext",
    "BadSignature",
    "Batch",
    "BatchTooLarge",
    "Call",
    "ConfigError",
    "Consumer",
    "ConsumerRefused",
    "Context",
    "DecodeError",
    "Discard",
    "Encrypted",
    "GrpcTarget",
    "Handle",
    "HttpTarget",
    "InvalidCron",
    "InvalidName",
    "InvalidPayload",
    "InvalidPolicy",
    "InvalidSchedule",
    "InvalidTask",
    "Item",
    "KeyConflict",
    "LateError",
    "Nack",
    "PayloadTooLarge",
    "PulledTask",
    "QueueFull",
    "Retry",
    "SchemaMismatch",
    "ServerTls",
    "Signal",
    "Signed",
    "Snooze",
    "SoftTimeLimit",
    "StoreError",
    "SubjectDropped",
    "Task",
    "TaskEnded",
    "TaskId",
    "TaskOptions",
    "Tls",
    "UnknownTask",
    "chain",
    "chord",
    "codec",
    "group",
    "log",
    "serve_handlers",
    "sign_url",
    "tag",
    "tracing",
    "verify_webhook",
    "wake",
    "watch",
]

_HOME_OF = dict.fromkeys(__all__, "errors") | {
    "AlreadyDone": "handler.outcomes",
    "App": "app.app",
    "RESULT": "app.workflows",
    "chain": "app.workflows",
    "chord": "app.workflows",
    "group": "app.workflows",
    "BadSignature": "dispatcher.push.webhook_signature",
    "GrpcTarget": "model.targets",
    "HttpTarget": "model.targets",
    "ServerTls": "api.handler_server",
    "Tls": "model.targets",
    "serve_handlers": "api.handler_server",
    "sign_url": "api.http.signed_urls",
    "verify_webhook": "dispatcher.push.webhook_signature",
    "AsyncContext": "handler.context",
    "Batch": "handler.batch",
    "Item": "handler.batch",
    "Call": "app.task",
    "Consumer": "consumer.consumer",
    "ConsumerRefused": "consumer.consumer",
    "Context": "handler.context",
    "Discard": "handler.outcomes",
    "Handle": "app.results",
    "Nack": "handler.outcomes",
    "PulledTask": "consumer.session",
    "Encrypted": "payload.codec",
    "Retry": "handler.outcomes",
    "Signed": "payload.codec",
    "Signal": "handler.outcomes",
    "Snooze": "handler.outcomes",
    "Task": "app.task",
    "TaskId": "model.task",
    "TaskOptions": "app.options",
    "tag": "observability.conflicts",
    "wake": "notify.notifier",
    "watch": "outbox.watch",
}


_NAMED = {"verify_webhook": "verify"}
"""Public names that have another name where they are defined."""
_MODULES = {
    "codec": "payload.codec",
    "log": "observability.logs",
    "tracing": "observability.traces",
}
"""Public modules: `late.tracing.enable(provider)`."""


def _refuse_another_late(folder: str) -> None:
    """Raise ImportError if a distribution named `late` has its files in this folder too.

    A look at 421 names took 0.6 ms; to import `importlib.metadata`, which asks better, took 47 ms.
    """
    try:
        names = os.listdir(folder)
    except OSError:  # An archive, or a folder that may not be listed: nothing installs into it.
        return
    for name in names:
        # A hyphen ends the distribution's name: `late_queue-0.2.0.dist-info` is ours.
        if name[:5].lower() == "late-" and name.endswith(".dist-info"):
            from late.errors import OVERWRITTEN

            raise ImportError(OVERWRITTEN)


_refuse_another_late(os.path.dirname(os.path.dirname(__file__)))


if not TYPE_CHECKING:  # A type checker must know each name, and refuse the others.

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            module = globals()[name] = import_module(f"late.{_MODULES[name]}")
            return module
        home = _HOME_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'late' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"late.{home}"), _NAMED.get(name, name))
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
