"""Find what a project does with tasks: calls, results, canvas, signals, what bodies use."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

import msgspec

from late.celery.scan import refused
from late.celery.scan.features import APP, RESULT, SCHEDULES, SIGNALS
from late.celery.scan.finder import OTHER_BASE, Finder
from late.celery.scan.names import (
    CANVAS,
    LINKS,
    NOT_THERE,
    OF_TASKS,
    RESULTS,
    SENDS,
    SIGNATURES,
    TYPED,
    is_joined,
    is_signature,
    sends,
)
from late.celery.scan.project import Module
from late.celery.scan.tasks import Task, Use


class Call(msgspec.Struct):
    """One place that sends a task, or does something with tasks."""

    name: str
    path: str
    line: int
    tasks: tuple[str, ...] = ()
    """The tasks that it is about, as far as they are known; as Celery knows them."""
    uses: list[Use] = msgspec.field(default_factory=list)


class CallFinder(ast.NodeVisitor):
    """Visits one module. `calls` and the uses of the tasks' bodies are the result."""

    def __init__(
        self,
        finder: Finder,
        module: Module,
        tasks: Mapping[str, Task],
        bodies: Mapping[ast.AST, Task],
    ) -> None:
        """
        Args:
            tasks: all tasks of the project by their dotted path.
            bodies: the nodes of this module's tasks.
        """
        self._finder = finder
        self._module = module
        self._tasks = tasks
        self._bodies = bodies
        self._inside: list[Task] = []
        self._after_commit = 0
        self._results = refused.results_of(module)
        self._seen: set[ast.AST] = set()
        self._seen_parts: set[ast.AST] = set()
        self.calls: list[Call] = []
        self.uses: list[Use] = []
        """Uses of no task: signals, schedules, exceptions outside of tasks."""

    def visit(self, node: ast.AST) -> None:
        task = self._bodies.get(node)
        if task is not None:
            self._inside.append(task)
        super().visit(node)
        if task is not None:
            self._inside.pop()

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Attribute):
            self._seen.add(function)
            self._method(node, function)
        name = self._resolve(function) or ""
        base, _, last = name.rpartition(".")
        if base.partition(".")[0] == "celery":
            self._of_celery(node, last)
        if self._finder.makes_app(self._module, function):
            self._of_app(node)
        if last == "on_commit":
            self._after_commit += 1
            self.generic_visit(node)
            self._after_commit -= 1
        else:
            self.generic_visit(node)

    def _method(self, node: ast.Call, function: ast.Attribute) -> None:
        attribute, value = function.attr, function.value
        self._refused(node, function)
        if attribute in SENDS:
            self._send(node, function)
        elif attribute in OF_TASKS and node not in self._seen and self._task(value) is not None:
            self._call(attribute, node, value)
        elif attribute in ("send_task", "signature") and self._finder.is_app(self._module, value):
            self._by_name(attribute, node)
        elif attribute == "AsyncResult" and (
            self._finder.is_app(self._module, value) or self._task(value) is not None
        ):
            self._call("AsyncResult", node)
        elif attribute in LINKS and is_signature(value):
            self._canvas(attribute, node)
        elif attribute == "get" and self._inside and sends(value):
            self._call("get_in_task", node)
        elif attribute == "add_periodic_task":
            self._periodic(node)
        elif isinstance(value, ast.Attribute) and value.attr == "control":
            if self._finder.is_app(self._module, value.value):
                self._call(attribute if attribute in ("revoke", "inspect") else "control", node)
        elif attribute == "connect":
            self._signal(function)

    def _refused(self, node: ast.Call, function: ast.Attribute) -> None:
        attribute, value = function.attr, function.value
        if attribute == "retry" and (task := self._task_here(value)) is not None:
            for name in refused.of_retry(node, task.retries):
                self._use("retry", name, node)
        elif attribute == "revoke" and refused.is_terminate(node):
            self._use("call", "revoke(terminate=True)", node)
        elif attribute == "forget" and refused.is_result(value, self._results):
            self._use("call", "forget", node)
        for name in refused.of_canvas(self._finder, self._module, node, function):
            self._use("call", name, node)

    def _task_here(self, value: ast.expr) -> Task | None:
        """Return the task whose body this is, if an expression names it."""
        inside = self._inside[-1] if self._inside else None
        if inside is None or not isinstance(value, ast.Name):
            return None
        return inside if value.id in inside.self_names or self._is_current(value) else None

    def _periodic(self, node: ast.Call) -> None:
        """`sender.add_periodic_task(30, task.s())`: the signature is no canvas."""
        call = Call("add_periodic_task", self._module.path, node.lineno)
        call.uses.append(Use("schedule", "add_periodic_task", call.path, call.line))
        for given in node.args:
            if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
                self._seen.add(given)
                task = self._task(given.func.value)
                call.tasks += (task.name,) if task else ()
        self.calls.append(call)

    def _send(self, node: ast.Call, function: ast.Attribute) -> None:
        call = self._call(function.attr, node, function.value)
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if function.attr == "apply_async":
            self._options(call, node)
        for kind in sorted({kind for value in given for kind in self._types(value)}):
            call.uses.append(Use("argument", kind, call.path, call.line))

    def _by_name(self, attribute: str, node: ast.Call) -> None:
        call = self._call(attribute, node)
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            call.tasks = (first.value,)
        if attribute == "send_task":
            self._options(call, node)

    def _options(self, call: Call, node: ast.Call) -> None:
        for keyword in node.keywords:
            line = keyword.value.lineno
            name = keyword.arg or "**"
            if name == "**" and isinstance(keyword.value, ast.Dict):
                continue
            call.uses.append(Use("apply_async", name, call.path, line))
            constant = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            if name == "serializer" and constant not in ("json", None):
                call.uses.append(Use("argument", "pickle", call.path, line))

    def _call(self, name: str, node: ast.AST, value: ast.expr | None = None) -> Call:
        line = getattr(node, "lineno", 0)
        task = self._task(value) if value is not None else None
        call = Call(name, self._module.path, line, (task.name,) if task else ())
        call.uses.append(Use("call", name, self._module.path, line))
        if self._after_commit:
            call.uses.append(Use("call", "on_commit", self._module.path, line))
        self.calls.append(call)
        return call

    def _canvas(self, name: str, node: ast.AST) -> None:
        """A canvas: it is about the task that makes it, and those whose signatures it joins."""
        call = self._call(name, node)
        joined = [
            task
            for each in ast.walk(node)
            if isinstance(each, ast.Attribute)
            and each.attr in SIGNATURES
            and (task := self._task(each.value)) is not None
        ]
        call.tasks = tuple(dict.fromkeys(task.name for task in [*self._inside[-1:], *joined]))

    def _of_celery(self, node: ast.Call, last: str) -> None:
        if last in CANVAS:
            self._canvas("signature" if last == "maybe_signature" else last, node)
        elif last in RESULTS:
            self._call(last, node)
        elif last in SCHEDULES:
            self._use("schedule", last, node)

    def _of_app(self, node: ast.Call) -> None:
        """`Celery(...)`: keywords that are no settings, and the class of its tasks."""
        for keyword in node.keywords:
            name, value = keyword.arg or "**", keyword.value
            if name in APP:
                self._use("app", name, value)
            if name == "task_cls" and self._finder.is_other_class(self._module, value):
                self._use("option", OTHER_BASE, value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr in NOT_THERE and self._is_app(node.value):
            self._use("app", node.attr, node)
        if node.attr in RESULT and refused.is_result(node.value, self._results):
            self._use("result", node.attr, node)
        if node not in self._seen and node.attr in SENDS and self._task(node.value) is not None:
            self._call(node.attr, node, node.value)  # handed to somebody who calls it
        if isinstance(node.ctx, ast.Load):
            self._of_self(node)
        if node.attr == "connect" and node not in self._seen:
            self._signal(node)
        self.generic_visit(node)

    def _of_self(self, node: ast.Attribute) -> None:
        """`self.request.id`, `self.retry`, `current_task.request`."""
        path: list[str] = []
        value: ast.expr = node
        while isinstance(value, ast.Attribute):
            path.insert(0, value.attr)
            value = value.value
        if not isinstance(value, ast.Name) or node in self._seen_parts:
            return
        self._seen_parts.update(each for each in ast.walk(node) if each is not node)
        if self._is_current(value) or (self._inside and value.id in self._inside[-1].self_names):
            name = ".".join(path[:2]) if path[0] == "request" else path[0]
            self._use("self", name, node)

    def _is_current(self, node: ast.expr) -> bool:
        return self._resolve(node) in (
            "celery.current_task", "celery._state.current_task", "late.celery.current_task",
        )  # fmt: skip

    def visit_BinOp(self, node: ast.BinOp) -> None:
        first = not isinstance(node.left, ast.BinOp)  # once for `a | b | c`
        if first and isinstance(node.op, ast.BitOr) and is_joined(node):
            self._canvas("chain", node)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._exception(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        for kind in kinds:
            self._exception(kind)
        self.generic_visit(node)

    def _exception(self, node: ast.expr | None) -> None:
        name = self._resolve(node) or ""
        if name.startswith(("celery.exceptions.", "billiard.exceptions.")):
            assert node is not None
            self._use("exception", name.rpartition(".")[2], node)

    def _signal(self, node: ast.Attribute) -> None:
        path, _, name = (self._resolve(node.value) or "").rpartition(".")
        if path == "celery.signals" or (name in SIGNALS and "celery" in path):
            self._use("signal", name, node)

    def _use(self, kind: str, name: str, node: ast.AST) -> None:
        use = Use(kind, name, self._module.path, getattr(node, "lineno", 0))
        uses = self._inside[-1].uses if self._inside else self.uses
        if use not in uses:
            uses.append(use)

    def _resolve(self, node: ast.expr | None) -> str | None:
        return self._finder.project.resolve(self._module, node)

    def _is_app(self, node: ast.expr) -> bool:
        """Return whether it is an app; `self.app` is one in a task alone."""
        if isinstance(node, ast.Attribute) and node.attr == "app" and not self._inside:
            return self._resolve(node) in self._finder.apps
        return self._finder.is_app(self._module, node)

    def _task(self, node: ast.expr | None) -> Task | None:
        """Return the task that an expression names, if it is one of the project."""
        if self._inside and isinstance(node, ast.Name) and node.id in self._inside[-1].self_names:
            return self._inside[-1]
        found = self._resolve(node)
        return None if found is None else self._tasks.get(found)

    def _types(self, node: ast.expr) -> Iterator[str]:
        for each in ast.walk(node):
            if isinstance(each, ast.Call):
                name = self._finder.project.resolve(self._module, each.func) or ""
                if name in TYPED:
                    yield TYPED[name]
