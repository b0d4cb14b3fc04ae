"""Know which expressions of a project are apps, decorators and classes of tasks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from late.celery.scan.project import Module, Project

DECORATORS = frozenset(
    (
        "celery.shared_task",
        "celery.app.shared_task",
        "celery.task",
        "celery.task.task",
        "celery.task.periodic_task",
        "celery.decorators.task",
        "celery.decorators.periodic_task",
        "celery.current_app.task",
        "late.celery.shared_task",
    )
)
TASK_CLASSES = frozenset(
    ("celery.Task", "celery.app.task.Task", "celery.task.Task", "celery.task.base.Task",
     "celery.task.PeriodicTask", "celery.current_app.Task", "late.celery.Task")
)  # fmt: skip
APP_CLASSES = frozenset(
    ("celery.Celery", "celery.app.Celery", "celery.app.base.Celery", "late.celery.Celery")
)
APPS = frozenset(("celery.Celery", "celery.app.base.Celery", "celery.current_app"))
ROUTERS = frozenset(("late.celery.router.Router", "late.celery.router.router.Router"))
OTHER_BASE = "base of another package"
APP_NAMES = ("app", "celery", "celery_app", "capp", "current_app")


class Finder:
    """Knows which expressions are apps, decorators and task classes in a project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.apps: set[str] = set()
        self.wrappers: set[str] = set()
        """Decorators of the project that make tasks."""
        self.bases: set[str] = set()
        """Classes of the project that derive from Celery's."""
        self.senders: set[str] = set()
        """Those with an `apply_async` of their own."""
        self.app_classes: set[str] = set()
        """Classes of the project that derive from that of Celery's app."""
        self.uses_celery = False
        for module in project.modules:
            origins = set(module.imports.values())
            packages = ("celery.", "late.celery.")
            self.uses_celery |= any(f"{name}.".startswith(packages) for name in origins)
            self._find_apps(module)
        for _ in range(3):  # a base class of a base class
            for module in project.modules:
                self._find_bases(module)
        for _ in range(2):
            for module in project.modules:
                self._find_wrappers(module)

    def is_app(self, module: Module, node: ast.expr) -> bool:
        """Return whether an expression is an app of Celery."""
        found = self.project.resolve(module, node)
        if found is None:
            return isinstance(node, ast.Call) and self._last(module, node) == "get_current_app"
        if found in self.apps or found in APPS:
            return True
        base, _, last = found.rpartition(".")
        if found.partition(".")[0] == "celery":
            return last in APP_NAMES
        if last == "app" and isinstance(node, ast.Attribute) and _is_self(node.value):
            return True  # `self.app` of a bound task
        known = self.project.module(base) is not None if base else True
        looks = "celery" in last.lower() or (not known and "celery" in base.lower())
        return self.uses_celery and last.lower().endswith(APP_NAMES) and looks

    def makes_app(self, module: Module, node: ast.expr) -> bool:
        """Return whether a call of an expression makes an app."""
        found = self.project.resolve(module, node)
        return found in APP_CLASSES or (found is not None and found in self.app_classes)

    def is_conf(self, module: Module, node: ast.expr) -> bool:
        """Return whether an expression is `app.conf`."""
        return (
            isinstance(node, ast.Attribute)
            and node.attr == "conf"
            and self.is_app(module, node.value)
        )

    def decorates(self, module: Module, node: ast.expr) -> str | None:
        """Return how a decorator makes a task: `celery`, `wrapper`; or None."""
        target = node.func if isinstance(node, ast.Call) else node
        found = self.project.resolve(module, target)
        if found in DECORATORS:
            return "celery"
        if found is not None and found in self.wrappers:
            return "wrapper"
        if isinstance(target, ast.Attribute) and target.attr in ("task", "periodic_task"):
            return "celery" if self.is_app(module, target.value) else None
        return None

    def is_task_class(self, module: Module, node: ast.expr) -> bool:
        """Return whether an expression is Celery's class of tasks, or one derived from it."""
        found = self.project.resolve(module, node)
        if found in TASK_CLASSES or found in self.bases:
            return True
        if isinstance(node, ast.Name) and f"{module.name}.{node.id}" in self.bases:
            return True  # It is defined within a function.
        return (
            isinstance(node, ast.Attribute)
            and node.attr == "Task"
            and self.is_app(module, node.value)
        )

    def is_other_class(self, module: Module, node: ast.expr) -> bool:
        """Return whether it is a class of tasks that does not derive from Celery's here."""
        return not isinstance(node, ast.Constant) and not self.is_task_class(module, node)

    def _last(self, module: Module, node: ast.Call) -> str:
        return (module.dotted(node.func) or "").rpartition(".")[2]

    def _find_apps(self, module: Module) -> None:
        for node in module.assigned:
            if not isinstance(node.value, ast.Call):
                continue
            made = self.project.resolve(module, node.value.func) or ""
            # Also `make_celery(app)`.
            if made in ROUTERS or "celery" in made.rpartition(".")[2].lower():
                for target in node.targets:
                    name = module.dotted(target)
                    if name is not None:
                        self.apps.add(name if "." in name else f"{module.name}.{name}")

    def _find_bases(self, module: Module) -> None:
        for node in module.classes:
            if any(self.is_task_class(module, base) for base in node.bases):
                self.bases.add(f"{module.name}.{node.name}")
                if any(
                    isinstance(e, ast.FunctionDef) and e.name == "apply_async" for e in node.body
                ):
                    self.senders.add(f"{module.name}.{node.name}")
            if any(self.makes_app(module, base) for base in node.bases):
                self.app_classes.add(f"{module.name}.{node.name}")

    def _find_wrappers(self, module: Module) -> None:
        """A function of a module that calls a decorator of tasks on what it was given."""
        for node in module.tree.body:
            if not isinstance(node, ast.FunctionDef):
                continue
            given = None
            for call in _calls(node):
                maker = call.func if isinstance(call.func, ast.Call) else call
                if self.decorates(module, maker) is None:
                    continue
                given = given or _parameters(node)
                if _passes_on(call, given):
                    self.wrappers.add(f"{module.name}.{node.name}")


def _passes_on(call: ast.Call, given: set[str]) -> bool:
    """Return whether `shared_task(**options)(function)` and the like is made of parameters."""
    passed = [*call.args, *(each.value for each in call.keywords if each.arg is None)]
    return any(isinstance(each, ast.Name) and each.id in given for each in passed)


def _parameters(node: ast.FunctionDef) -> set[str]:
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments = each.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            every += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
            found |= {one.arg for one in every}
            if each is not node and not isinstance(each, ast.Lambda):
                found.add(each.name)
    return found


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "task", "sender")
