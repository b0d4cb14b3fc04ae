"""Say what becomes of each import of the package `celery`: most names are in `late.celery` too."""

from __future__ import annotations

from late.celery.scan.verdict import BROKER, REMOTE, Feature

_TWINS: dict[str, dict[str, str]] = {
    "late.celery": {
        "celery": "Celery Signature Task chain chord current_app current_task group shared_task"
                  " signature subtask uuid",
        "celery.app": "Celery shared_task",
        "celery.app.base": "Celery",
        "celery.app.task": "Task",
        "celery.canvas": "Signature chain chord group signature subtask",
        "celery._state": "current_app current_task",
        "celery.utils": "uuid",
    },
    "late.celery.result": {"celery.result": "AsyncResult EagerResult GroupResult"},
    "late.celery.schedules": {"celery.schedules": "crontab schedule"},
    "late.celery.states": {
        "celery.states": "ALL_STATES EXCEPTION_STATES FAILURE IGNORED PENDING PROPAGATE_STATES"
                         " READY_STATES RECEIVED REJECTED RETRY REVOKED STARTED SUCCESS"
                         " UNREADY_STATES",
    },
    "late.celery.utils.log": {"celery.utils.log": "get_logger get_task_logger"},
}  # fmt: skip
"""Module of `late.celery` -> module of Celery -> the names that both have."""
MODULES = {
    "celery": "late.celery",
    "celery.canvas": "late.celery",
    "celery.exceptions": "late.celery.exceptions",
    "celery.result": "late.celery.result",
    "celery.schedules": "late.celery.schedules",
    "celery.signals": "late.celery.signals",
    "celery.states": "late.celery.states",
    "celery.utils": "late.celery.utils",
    "celery.utils.log": "late.celery.utils.log",
}
"""Modules that are imported as a whole. Names in them have verdicts of their own."""
OTHERS: dict[str, Feature] = {
    "celery._state": Feature("edit", "use `current_app`, `current_task`"),
    "celery.app.app_or_default": Feature("edit", "use `current_app`"),
    "celery.app.control": Feature("edit", REMOTE),
    "celery.app.log": Feature("edit", "set logging up in the module of the app"),
    "celery.apps": Feature("edit", "start `late worker`"),
    "celery.backends": Feature("unsupported", "there is no result backend: use AsyncResult"),
    "celery.beat": Feature("edit", "there is no beat process: workers fire schedules"),
    "celery.bin": Feature("edit", "start `late worker`"),
    "celery.bootsteps": Feature("edit", "`@app.lifespan` opens what handlers share"),
    "celery.concurrency": Feature("edit", "leave it out: no pool forks here"),
    "celery.contrib": Feature("edit", "test with `late.testing`"),
    "celery.decorators": Feature("edit", "use `shared_task` of `late.celery`"),
    "celery.events": Feature("edit", "events are metrics and logs here"),
    "celery.loaders": Feature("edit", "use `config_from_object`"),
    "celery.maybe_signature": Feature("edit", "use `signature`"),
    "celery.canvas.maybe_signature": Feature("edit", "use `signature`"),
    "celery.result.ResultSet": Feature("edit", "read the results one by one"),
    "celery.result.allow_join_result": Feature("edit", "leave it out: nothing forbids it here"),
    "celery.schedules.solar": Feature("unsupported", "no schedule follows the sun"),
    "celery.task": Feature("edit", "use `shared_task` and `Task` of `late.celery`"),
    "celery.worker": Feature("edit", REMOTE),
    "kombu": Feature("edit", BROKER),
}
"""Names and modules without a twin. A name without a line has that of the module around it."""
IMPORTS: dict[str, Feature] = {
    **{
        f"{theirs}.{name}": Feature("same", f"from `{ours}`")
        for ours, modules in _TWINS.items()
        for theirs, names in modules.items()
        for name in names.split()
    },
    **{theirs: Feature("same", f"import `{ours}`") for theirs, ours in MODULES.items()},
    **OTHERS,
}
NO_TWIN = Feature("edit", "not in late.celery")
SAID_BY_USE = ("celery.signals.", "celery.exceptions.")
"""Names of these modules have a verdict where they are used."""


def imported(name: str) -> Feature:
    """Return what becomes of the import of a name or a module of Celery, by its dotted name."""
    found = IMPORTS.get(name)
    while found is None and name:
        name = name.rpartition(".")[0]
        around = OTHERS.get(name)
        found = around or found
    return found or NO_TWIN
