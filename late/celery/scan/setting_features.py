"""Say what becomes of each setting of Celery."""

from __future__ import annotations

from late.celery.scan.verdict import BEAT, BROKER, REMOTE, Feature

_LEAKS = "`process_memory_mb` replaces a worker that leaks; children of `process=True` count"

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
    "beat_schedule": Feature("same", BEAT),
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
    "broker_url": Feature("edit", BROKER),
    "result_expires=None": Feature("edit", "say how long results are kept"),
    "task_routes=function": Feature("edit", "name queues by task or pattern: no function routes"),
    "not read": Feature("edit", "settings in a form that is not read: look at them yourself"),
    "result_backend": Feature("edit", "results are rows of the database"),
}
"""Settings in their lower-case names; those that begin alike have one entry in `PREFIXES`."""
PREFIXES: dict[str, Feature] = {
    "broker_": Feature("edit", BROKER),
    "result_": Feature("edit", "results are rows of the database"),
    "redis_": Feature("edit", BROKER),
    "cache_": Feature("edit", "results are rows of the database"),
    "database_": Feature("edit", "results are rows of the database"),
    "mongodb_": Feature("edit", "results are rows of the database"),
    "beat_": Feature("edit", "schedules are rows of the database"),
    "worker_": Feature("edit", "see `late worker --help`"),
    "event_": Feature("edit", "see the metrics"),
    "control_": Feature("edit", REMOTE),
    "task_": Feature("edit", "state it at the tasks"),
    "security_": Feature("edit", "see docs/security.md"),
}
