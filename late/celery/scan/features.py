"""Say what becomes of each part of Celery: one table, which docs and the scan read."""

from __future__ import annotations

from late.celery.scan.setting_features import PREFIXES, SETTINGS
from late.celery.scan.twins import IMPORTS, imported
from late.celery.scan.verdict import BEAT, BROKER, REMOTE, Feature

_EVENTS = "events are metrics and logs here"
_OF_INSIDE = "it is of Celery's inside"
_LEAVE = "leave it out"
_CANVAS = "from `late.celery`: one workflow, in your transaction"
_FIXED = "a workflow does not change once it has begun: call the next task in the one before"
_LINK = "of a task alone, or of the last one of a chain"
_ERRBACK = (
    "one for all tasks of a chain: it gets the id of the failed task, or (request, exc, traceback)"
)
_MAPS = "make a group of calls, or let one task go through the list"
_INSIDE = "it is of Celery's inside: a canvas sets it"
_SIGNATURE = "a call as a value"

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
    "base of another package": Feature(
        "unsupported", "the class does not derive from Celery's in this source: write it anew"
    ),
    "Request": Feature("unsupported", _OF_INSIDE),
    "Strategy": Feature("unsupported", _OF_INSIDE),
    "__call__": Feature("same", "around each attempt"),
    "apply_async": Feature("same", "a canvas goes past it", silent=True),
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
    "exchange": Feature("edit", BROKER),
    "routing_key": Feature("edit", BROKER),
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
    "request.reply_to": Feature("edit", BROKER),
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
    "subtask": Feature("same", _SIGNATURE),
    "map": Feature("unsupported", _MAPS),
    "starmap": Feature("unsupported", _MAPS),
    "send_event": Feature("edit", _EVENTS),
    "OperationalError": Feature("edit", BROKER),
} | {
    name: Feature("edit", "an attribute only where the decorator states it")
    for name in (
        "abstract", "acks_late", "acks_on_failure", "acks_on_failure_or_timeout",
        "acks_on_timeout", "reject_on_worker_lost", "resultrepr_maxsize", "retry_on_worker_lost",
        "send_events", "store_eager_result", "store_errors_even_if_ignored", "throws",
        "track_started", "trail",
    )
} | {
    name: Feature("unsupported", _OF_INSIDE)
    for name in (
        "Request", "Strategy", "add_around", "add_trail", "annotate", "bind", "from_config",
        "on_bound", "on_replace", "pop_request", "push_request", "request_stack", "shadow_name",
        "signature_from_request", "start_strategy", "subtask_from_request",
    )
}  # fmt: skip
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
    "exchange": Feature("edit", BROKER),
    "routing_key": Feature("edit", BROKER),
    "producer": Feature("same", "no effect"),
    "add_to_parent": Feature("same", "no effect"),
    "argsrepr": Feature("same", "no effect"),
    "kwargsrepr": Feature("same", "no effect"),
    "connection": Feature("same", "no effect"),
    "publisher": Feature("edit", BROKER),
    "router": Feature("edit", BROKER),
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
    "control": Feature("edit", REMOTE),
    "inspect": Feature("edit", REMOTE),
    "revoke": Feature("same", "without `terminate`; with the router by `router.control`"),
    "revoke(terminate=True)": Feature(
        "edit", "nothing ends a thread from outside: leave `terminate` out, set a `time_limit`"
    ),
    "forget": Feature("edit", "leave it out: a result goes after `result_expires`"),
    "link_error of a group": Feature(
        "edit", "give it to the body of a chord, or catch the error in the task"
    ),
    "task_id in a canvas": Feature("edit", "a task of a canvas has no task_id"),
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

SCHEDULES: dict[str, Feature] = {
    "crontab": Feature("same", BEAT),
    "schedule": Feature("same", BEAT),
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
    "async def": Feature("edit", "make it a task of `late` itself, which runs coroutines"),
    "generator": Feature("unsupported", "a task cannot be a generator"),
}
"""The ways to write a task."""

RESULT: dict[str, Feature] = {
    "traceback": Feature("same", "one line: the type, the message and the places"),
    "info": Feature("same"),
    "children": Feature("edit", "keep the results that you start"),
    "date_done": Feature("edit", "see `late show`"),
} | {
    name: Feature("edit", "use `get`, `state`, `result`, `parent`")
    for name in (
        "build_graph", "collect", "get_leaf", "graph", "iterdeps", "maybe_reraise", "maybe_throw",
        "on_ready", "then",
    )
}  # fmt: skip
"""Attributes of results."""
RETRY: dict[str, Feature] = {
    name: Feature("same")
    for name in ("exc", "throw", "eta", "countdown", "max_retries")
} | {
    "args": Feature("edit", "the same ones alone: call the task anew with others, and return"),
    "kwargs": Feature("edit", "the same ones alone: call the task anew with others, and return"),
    "max_retries above": Feature("edit", "give the decorator as many"),
    "**": Feature("edit", "computed keywords: see what they are"),
}  # fmt: skip
"""Keywords of `self.retry`. A retry has all others from its task."""
APP: dict[str, Feature] = {
    name: Feature("same")
    for name in (
        "task", "tasks", "conf", "Task", "task_cls", "send_task", "signature", "AsyncResult",
        "control", "autodiscover_tasks", "config_from_object", "config_source", "namespace",
        "register_task", "add_periodic_task", "set_default", "set_current", "close", "main",
        "current_task", "strict_typing",
    )
} | {
    name: Feature("edit", "do it in the module of the app")
    for name in (
        "on_after_configure", "on_after_finalize", "on_after_fork", "on_configure", "on_init",
    )
} | {
    name: Feature("edit", _LEAVE)
    for name in (
        "autofinalize", "config_source_silent", "configured", "control_cls", "either", "finalize",
        "finalized", "fixups", "loader", "loader_cls", "oid", "prepare_config", "registry_cls",
        "set_as_current", "setup_security", "steps", "thread_oid", "user_options",
    )
} | {
    name: Feature("edit", "start `late worker`")
    for name in ("Worker", "WorkController", "start", "worker_main")
} | {
    name: Feature("unsupported", BROKER)
    for name in (
        "amqp", "amqp_cls", "broker_connection", "connection", "connection_for_read",
        "connection_for_write", "connection_or_acquire", "default_connection", "default_producer",
        "pool", "producer_or_acquire", "producer_pool", "select_queues",
    )
} | {
    "Beat": Feature("edit", "there is no beat process: workers fire schedules"),
    "GroupResult": Feature("edit", "of a call of a group; no id, no `save` and `restore`"),
    "ResultSet": Feature("edit", "read the results one by one"),
    "**": Feature("edit", "computed keywords: see what they are"),
    "add_defaults": Feature("edit", "use `conf.update`"),
    "annotations": Feature("edit", "state it at the tasks, or by knobs of the queue"),
    "backend": Feature("unsupported", "there is no result backend: use AsyncResult"),
    "backend_cls": Feature("unsupported", "there is no result backend: use AsyncResult"),
    "changes": Feature("edit", "give the settings by their names"),
    "config_from_cmdline": Feature("edit", "use `config_from_object`"),
    "config_from_envvar": Feature("edit", "use `config_from_object(os.environ[...])`"),
    "events": Feature("edit", _EVENTS),
    "events_cls": Feature("edit", _EVENTS),
    "gen_task_name": Feature("edit", "state `name=` at the task"),
    "log": Feature("edit", "set logging up in the module of the app"),
    "log_cls": Feature("edit", "set logging up in the module of the app"),
    "now": Feature("edit", "use `datetime.now(UTC)`"),
    "timezone": Feature("edit", "read `conf.timezone`"),
    "uses_utc_timezone": Feature("edit", "it is always so"),
}  # fmt: skip
"""Attributes of an app, and keywords of `Celery(...)` that are no settings."""

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
    "retry": RETRY,
    "result": RESULT,
    "app": APP,
    "import": IMPORTS,
}
_UNKNOWN = {
    "option": Feature("same", "no option of Celery: an attribute of the task"),
    "self": Feature("same", "an attribute of the task's class"),
    "apply_async": Feature("edit", "not known: late.celery refuses it"),
    "signal": Feature("unsupported", "no such signal here"),
    "exception": Feature("edit", "not known here"),
    "retry": Feature("edit", "a retry has it from the task: leave it out"),
    "app": Feature("unsupported", _OF_INSIDE),
    "result": Feature("edit", "use `get`, `state`, `result`, `parent`"),
}


def feature(kind: str, name: str) -> Feature:
    """Return what becomes of `name`, of one of the kinds of `TABLE`."""
    if kind == "import":
        return imported(name)
    found = TABLE[kind].get(name)
    if found is None and kind == "setting":
        found = next((f for prefix, f in PREFIXES.items() if name.startswith(prefix)), None)
    if found is None and kind == "self" and name.startswith("request."):
        return Feature("edit", "not of the request here")
    return found or _UNKNOWN.get(kind, Feature("edit", "not known"))
