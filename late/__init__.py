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

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from late.api.consumer import Consumer, ConsumerRefused
    from late.api.session import PulledTask
    from late.app import App
    from late.batch import Batch, Item
    from late.context import AsyncContext, Context
    from late.dispatcher.serving import ServerTls, serve_handlers
    from late.dispatcher.targets import GrpcTarget, HttpTarget, Tls
    from late.dispatcher.webhooks import BadSignature
    from late.dispatcher.webhooks import verify as verify_webhook
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
        StoreError,
        TaskEnded,
        UnknownTask,
    )
    from late.options import TaskOptions
    from late.policy import AlreadyDone, Discard, Nack, Retry, Signal, Snooze
    from late.task import TaskId
    from late.tasks import Call, Task
    from late.waking import wake

__all__ = [
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
    "Snooze",
    "StoreError",
    "Task",
    "TaskEnded",
    "TaskId",
    "TaskOptions",
    "Tls",
    "UnknownTask",
    "serve_handlers",
    "verify_webhook",
    "wake",
]

_HOME_OF = dict.fromkeys(__all__, "errors") | {
    "AlreadyDone": "policy",
    "App": "app",
    "BadSignature": "dispatcher.webhooks",
    "GrpcTarget": "dispatcher.targets",
    "HttpTarget": "dispatcher.targets",
    "ServerTls": "dispatcher.serving",
    "Tls": "dispatcher.targets",
    "serve_handlers": "dispatcher.serving",
    "verify_webhook": "dispatcher.webhooks",
    "AsyncContext": "context",
    "Batch": "batch",
    "Item": "batch",
    "Call": "tasks",
    "Consumer": "api.consumer",
    "ConsumerRefused": "api.consumer",
    "Context": "context",
    "Discard": "policy",
    "Handle": "results",
    "Nack": "policy",
    "PulledTask": "api.session",
    "Retry": "policy",
    "Signal": "policy",
    "Snooze": "policy",
    "Task": "tasks",
    "TaskId": "task",
    "TaskOptions": "options",
    "wake": "waking",
}


_NAMED = {"verify_webhook": "verify"}
"""What is called otherwise at home."""


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'late' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"late.{home}"), _NAMED.get(name, name))
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
