"""Say what becomes of each part of Celery: one table, which docs and the scan read."""

from __future__ import annotations

from typing import Literal, NamedTuple

Verdict = Literal["same", "edit", "unsupported"]
ORDER: tuple[Verdict, ...] = ("same", "edit", "unsupported")
"""From the best to the worst."""


class Feature(NamedTuple):
    """One part of Celery's interface."""

    verdict: Verdict
    note: str = ""
    """The reason, or what to do."""
    silent: bool = False
    """True if it goes on without an error, and means something else."""


_CANVAS = "from `late.celery`: one workflow, in your transaction"
_FIXED = "a workflow does not change once it has begun: call the next task in the one before"
_LINK = "of a task alone, or of the last one of a chain"
_ERRBACK = (
    "one for all tasks of a chain: it gets the id of the failed task, or (request, exc, traceback)"
)
_MAPS = "make a group of calls, or let one task go through the list"
_INSIDE = "it is of Celery's inside: a canvas sets it"
_LEAKS = "`process_memory_mb` replaces a worker whose handlers leak"
_BROKER = "there is no broker: the tasks are rows of the database"
_SIGNATURE = "a call as a value"
_BEAT = "`late celery beat` reads it"
_REMOTE = "operate with `late status`, `late cancel`, `late queue`, or the page"

OPTIONS: dict[str, Feature] = {
    "name": Feature("same"),
    "bind": Feature("same"),
    "queue": Feature("same"),
    "ignore_result": Feature("same"),
    "max_retries": Feature("same"),
    "default_retry_delay": Feature("same"),
    "autoretry_for": Feature("same"),
    "dont_autoretry_for": Feature("same"),
    "retry_kwargs": Feature("same"),
    "retry_backoff": Feature("same"),
    "retry_backoff_max": Feature("same"),
    "retry_jitter": Feature("same"),
    "soft_time_limit": Feature("same"),
    "time_limit": Feature("same", "what it ends is repeated within max_retries", silent=True),
    "base": Feature("same"),
    "acks_late": Feature("same", "always so: a task runs again after the death of its worker"),
    "reject_on_worker_lost": Feature("same", "always so"),
    "acks_on_failure_or_timeout": Feature("same", "no effect: a failed task is a dead letter"),
    "expires": Feature("same"),
    "priority": Feature("same"),
    "throws": Feature("same", "no effect"),
    "track_started": Feature("same", "no effect: `late show` tells"),
    "store_errors_even_if_ignored": Feature("same", "no effect: see `late show`, dead letters"),
    "send_events": Feature("same", "no effect: see the metrics"),
    "rate_limit": Feature("edit", "it holds for all workers together: give it more"),
    "serializer": Feature("same", "JSON alone"),
    "compression": Feature("same", "no effect: set a codec of the app"),
    "pydantic": Feature("edit", "late's own tasks take models by their annotations"),
    "typing": Feature("same"),
    "shared": Feature("same"),
    "lazy": Feature("same"),
    "trail": Feature("same", "no effect"),
    "**": Feature("edit", "computed options: see what they are"),
    "abstract": Feature("same"),
    "exchange": Feature("edit", _BROKER),
    "routing_key": Feature("edit", _BROKER),
    "run_every": Feature("edit", "make a schedule with `@app.schedule`"),
    "after_return": Feature("same"),
    "on_failure": Feature("same"),
    "on_retry": Feature("same"),
    "on_success": Feature("same"),
    "before_start": Feature("same"),
}

ATTRIBUTES: dict[str, Feature] = {
    "request": Feature("same"),
    "request.id": Feature("same"),
    "request.root_id": Feature("edit", "not there: `late show` has the workflow of a task"),
    "request.parent_id": Feature("edit", "not there: `late show` has the workflow of a task"),
    "request.retries": Feature("same"),
    "request.args": Feature("same"),
    "request.kwargs": Feature("same"),
    "request.headers": Feature("same"),
    "request.hostname": Feature("same"),
    "request.task": Feature("same"),
    "request.eta": Feature("same"),
    "request.expires": Feature("same"),
    "request.is_eager": Feature("same"),
    "request.called_directly": Feature("same"),
    "request.delivery_info": Feature("same", "it has the queue as `routing_key`, no exchange"),
    "request.get": Feature("edit", "read the attribute"),
    "request.timelimit": Feature("same"),
    "request.group": Feature("unsupported", "not there: `late show` has the workflow of a task"),
    "request.chain": Feature("unsupported", "not there: `late show` has the workflow of a task"),
    "request.chord": Feature("unsupported", "not there: `late show` has the workflow of a task"),
    "request.callbacks": Feature(
        "unsupported", "not there: `late show` has the workflow of a task"
    ),
    "request.errbacks": Feature("unsupported", "not there: `late show` has the workflow of a task"),
    "request.correlation_id": Feature("edit", "use `request.id`"),
    "request.reply_to": Feature("edit", _BROKER),
    "retry": Feature("same"),
    "name": Feature("same"),
    "app": Feature("same"),
    "max_retries": Feature("same"),
    "default_retry_delay": Feature("same"),
    "run": Feature("same"),
    "apply_async": Feature("same"),
    "delay": Feature("same"),
    "s": Feature("same", _SIGNATURE),
    "si": Feature("same", _SIGNATURE),
    "signature": Feature("same", _SIGNATURE),
    "AsyncResult": Feature("same"),
    "update_state": Feature("edit", "no state but the end is kept: write progress to your tables"),
    "backend": Feature("unsupported", "there is no result backend: use AsyncResult"),
    "replace": Feature("unsupported", _FIXED),
    "add_to_chord": Feature("unsupported", _FIXED),
    "chunks": Feature("unsupported", _MAPS),
    "push_request": Feature("unsupported", "it is of Celery's inside"),
    "pop_request": Feature("unsupported", "it is of Celery's inside"),
    "request_stack": Feature("unsupported", "it is of Celery's inside"),
    "subtask": Feature("same", _SIGNATURE),
}
"""Attributes of a task, as `self` in a bound one."""

CALL_OPTIONS: dict[str, Feature] = {
    "args": Feature("same"),
    "kwargs": Feature("same"),
    "queue": Feature("same"),
    "priority": Feature("same", "9 is first, as on RabbitMQ; on Redis 0 is", silent=True),
    "headers": Feature("same"),
    "expires": Feature("same"),
    "countdown": Feature("same", "it counts from the commit"),
    "eta": Feature("same"),
    "task_id": Feature("same", "a second call with the id is the same task; refused in a canvas"),
    "ignore_result": Feature("edit", "state it at the task"),
    "time_limit": Feature("edit", "state it at the task"),
    "soft_time_limit": Feature("edit", "state it at the task"),
    "link": Feature("same", _LINK),
    "link_error": Feature("same", _ERRBACK),
    "chain": Feature("unsupported", _INSIDE),
    "group_id": Feature("unsupported", _INSIDE),
    "chord": Feature("unsupported", _INSIDE),
    "serializer": Feature("same", "JSON alone"),
    "compression": Feature("same", "no effect: set a codec of the app"),
    "retry": Feature("same", "no effect: the row is part of your transaction"),
    "retry_policy": Feature("same", "no effect: the row is part of your transaction"),
    "shadow": Feature("edit", "leave it out"),
    "exchange": Feature("edit", _BROKER),
    "routing_key": Feature("edit", _BROKER),
    "producer": Feature("same", "no effect"),
    "connection": Feature("same", "no effect"),
    "publisher": Feature("edit", _BROKER),
    "router": Feature("edit", _BROKER),
    "stamped_headers": Feature("edit", "use `headers`"),
    "**": Feature("edit", "computed keywords: see what they are"),
    "replaced_task_nesting": Feature("unsupported", _INSIDE),
}
"""Keywords of `apply_async` and `send_task`."""

CALLS: dict[str, Feature] = {
    "delay": Feature("same"),
    "apply_async": Feature("same"),
    "send_task": Feature("same", "of registered tasks"),
    "apply": Feature("same"),
    "s": Feature("same", _SIGNATURE),
    "si": Feature("same", _SIGNATURE),
    "signature": Feature("same", _SIGNATURE),
    "subtask": Feature("same", _SIGNATURE),
    "AsyncResult": Feature("same"),
    "chain": Feature("same", _CANVAS),
    "group": Feature("same", _CANVAS),
    "chord": Feature("same", _CANVAS),
    "link": Feature("same", _LINK),
    "link_error": Feature("same", _ERRBACK),
    "on_error": Feature("same", _ERRBACK),
    "chunks": Feature("unsupported", _MAPS),
    "map": Feature("unsupported", _MAPS),
    "starmap": Feature("unsupported", _MAPS),
    "xmap": Feature("unsupported", _MAPS),
    "xstarmap": Feature("unsupported", _MAPS),
    "GroupResult": Feature("edit", "of a call of a group; no id, no `save` and `restore`"),
    "ResultSet": Feature("edit", "read the results one by one"),
    "ResultBase": Feature("edit", "use the kinds of result"),
    "EagerResult": Feature("same"),
    "allow_join_result": Feature("edit", "leave it out: nothing forbids it here"),
    "control": Feature("edit", _REMOTE),
    "inspect": Feature("edit", _REMOTE),
    "revoke": Feature("same", "without `terminate`"),
    "amqp": Feature("unsupported", _BROKER),
    "connection": Feature("unsupported", _BROKER),
    "pool": Feature("unsupported", _BROKER),
    "events": Feature("edit", "events are metrics and logs here"),
    "on_commit": Feature(
        "same", "with the router; `late.celery` raises NoTransaction: call it in the transaction"
    ),
    "get_in_task": Feature("edit", "waiting for another task in a task can stand still"),
}
"""Calls of tasks, apps, results and the canvas."""

SIGNALS: dict[str, Feature] = {
    name: Feature("same", "from `late.celery.signals`")
    for name in (
        "before_task_publish", "after_task_publish", "task_prerun", "task_postrun",
        "task_success", "task_failure", "task_retry", "worker_ready", "worker_shutdown",
    )
} | {
    name: Feature("edit", "not sent: use `worker_ready`, or the module of the app")
    for name in ("worker_process_init", "celeryd_init", "celeryd_after_setup", "worker_init")
} | {
    "task_revoked": Feature("edit", "not sent: a cancelled task does not run"),
    "after_setup_logger": Feature("edit", "set logging up in the module of the app"),
    "after_setup_task_logger": Feature("edit", "set logging up in the module of the app"),
    "beat_init": Feature("edit", "there is no beat process: workers fire schedules"),
    "setup_logging": Feature("edit", "set logging up in the module of the app"),
}  # fmt: skip

TYPES: dict[str, Feature] = {
    "datetime": Feature("same", "late.celery gives it back as itself; `@app.task` by annotation",
                        silent=True),
    "Decimal": Feature("same", "late.celery gives it back as itself; `@app.task` by annotation",
                       silent=True),
    "UUID": Feature("same", "late.celery gives it back as itself; `@app.task` by annotation",
                    silent=True),
    "tuple": Feature("same", "it comes back as a list, as with Celery", silent=True),
    "pickle": Feature("unsupported", "pickled arguments run code of whoever can write them"),
}  # fmt: skip
"""Types of arguments."""

SETTINGS: dict[str, Feature] = {
    "task_always_eager": Feature("same"),
    "task_eager_propagates": Feature("same"),
    "task_default_queue": Feature("same"),
    "task_ignore_result": Feature("same"),
    "task_time_limit": Feature("same"),
    "task_soft_time_limit": Feature("same"),
    "task_routes": Feature("same", "by name and pattern; no router functions"),
    "timezone": Feature("same"),
    "enable_utc": Feature("same", "always so"),
    "task_acks_late": Feature("same", "always so"),
    "task_reject_on_worker_lost": Feature("same", "always so"),
    "task_serializer": Feature("same", "JSON alone"),
    "result_serializer": Feature("same", "JSON alone"),
    "event_serializer": Feature("edit", "leave it out"),
    "accept_content": Feature("same", "JSON alone"),
    "result_expires": Feature("same", "for the results of all tasks"),
    "beat_schedule": Feature("same", _BEAT),
    "beat_scheduler": Feature("edit", "schedules are rows of the database"),
    "imports": Feature("same"),
    "include": Feature("same"),
    "task_queues": Feature("edit", "queues need no declaration"),
    "task_create_missing_queues": Feature("edit", "queues need no declaration"),
    "task_default_priority": Feature("edit", "state it at the tasks"),
    "task_queue_max_priority": Feature("edit", "leave it out"),
    "task_default_rate_limit": Feature("edit", "set the knob `rate` of the queue"),
    "task_annotations": Feature("edit", "state it at the tasks, or by knobs of the queue"),
    "task_track_started": Feature("edit", "leave it out: `late show` tells"),
    "task_publish_retry": Feature("edit", "leave it out: the row is part of your transaction"),
    "task_publish_retry_policy": Feature("edit", "leave it out"),
    "task_store_errors_even_if_ignored": Feature("edit", "leave it out"),
    "worker_concurrency": Feature("edit", "LATE_CONCURRENCY, or --concurrency"),
    "worker_prefetch_multiplier": Feature("edit", "leave it out"),
    "worker_max_tasks_per_child": Feature("edit", _LEAKS),
    "worker_max_memory_per_child": Feature("edit", _LEAKS),
    "worker_send_task_events": Feature("edit", "leave it out: see the metrics"),
    "task_send_sent_event": Feature("edit", "leave it out: see the metrics"),
    "worker_hijack_root_logger": Feature("edit", "leave it out: late leaves logging alone"),
    "worker_pool": Feature("edit", "`def` handlers run in threads, or with `process=True`"),
    "broker_url": Feature("edit", _BROKER),
    "result_backend": Feature("edit", "results are rows of the database"),
}
"""Settings in their lower-case names; those that begin alike have one entry in `PREFIXES`."""
PREFIXES: dict[str, Feature] = {
    "broker_": Feature("edit", _BROKER),
    "result_": Feature("edit", "results are rows of the database"),
    "redis_": Feature("edit", _BROKER),
    "cache_": Feature("edit", "results are rows of the database"),
    "database_": Feature("edit", "results are rows of the database"),
    "mongodb_": Feature("edit", "results are rows of the database"),
    "beat_": Feature("edit", "schedules are rows of the database"),
    "worker_": Feature("edit", "see `late worker --help`"),
    "event_": Feature("edit", "see the metrics"),
    "control_": Feature("edit", _REMOTE),
    "task_": Feature("edit", "state it at the tasks"),
    "security_": Feature("edit", "see docs/security.md"),
}
SCHEDULES: dict[str, Feature] = {
    "crontab": Feature("same", _BEAT),
    "schedule": Feature("same", _BEAT),
    "solar": Feature("unsupported", "no schedule follows the sun"),
    "periodic_task": Feature("edit", "make a schedule with `@app.schedule`"),
    "add_periodic_task": Feature("edit", "call it in the module of the app, on no signal"),
}
EXCEPTIONS: dict[str, Feature] = {
    name: Feature("same")
    for name in ("Retry", "MaxRetriesExceededError", "Ignore", "Reject", "SoftTimeLimitExceeded",
                 "TaskRevokedError", "TimeLimitExceeded", "TimeoutError")
} | {
    "WorkerLostError": Feature("edit", "no task sees it: its worker is dead"),
    "NotRegistered": Feature("edit", "an unknown task waits for a worker that has it"),
}  # fmt: skip
SHAPES: dict[str, Feature] = {
    "class": Feature("edit", "a class with `run`: register it with `app.register_task`"),
    "method": Feature("unsupported", "a task is a function of a module, not a method"),
    "wrapper": Feature("edit", "made by a decorator of the project: change that one decorator"),
    "nested": Feature("edit", "defined inside of a function: workers find tasks by import"),
    "lambda": Feature("unsupported", "give the function a name"),
    "generator": Feature("unsupported", "a task cannot be a generator"),
}
"""The ways to write a task."""

TABLE: dict[str, dict[str, Feature]] = {
    "option": OPTIONS,
    "self": ATTRIBUTES,
    "apply_async": CALL_OPTIONS,
    "call": CALLS,
    "signal": SIGNALS,
    "argument": TYPES,
    "setting": SETTINGS,
    "schedule": SCHEDULES,
    "exception": EXCEPTIONS,
    "shape": SHAPES,
}
_UNKNOWN = {
    "option": Feature("same", "no option of Celery: an attribute of the task"),
    "self": Feature("same", "an attribute of the task's class"),
    "apply_async": Feature("edit", "not known: late.celery refuses it"),
    "signal": Feature("unsupported", "no such signal here"),
    "exception": Feature("edit", "not known here"),
}


def feature(kind: str, name: str) -> Feature:
    """Return what becomes of `name`, of one of the kinds of `TABLE`."""
    found = TABLE[kind].get(name)
    if found is None and kind == "setting":
        found = next((f for prefix, f in PREFIXES.items() if name.startswith(prefix)), None)
    if found is None and kind == "self" and name.startswith("request."):
        return Feature("edit", "not of the request here")
    return found or _UNKNOWN.get(kind, Feature("edit", "not known"))


def worst(verdicts: list[Verdict]) -> Verdict:
    """Return the worst of them; `same` if there are none."""
    return max(verdicts, key=ORDER.index, default="same")
