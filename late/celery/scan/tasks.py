"""Find the tasks of a project: what makes a function or a class a task, and what it uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import msgspec

from late.celery.scan.features import OPTIONS, feature
from late.celery.scan.finder import OTHER_BASE, Finder
from late.celery.scan.project import Module
from late.celery.scan.refused import UNKNOWN, retries_of
from late.celery.scan.verdict import Verdict, worst

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Use(msgspec.Struct, frozen=True):
    """One feature at one line."""

    kind: str
    name: str
    path: str
    line: int

    @property
    def feature(self) -> str:
        return f"{self.kind}.{self.name}"

    @property
    def verdict(self) -> Verdict:
        return feature(self.kind, self.name).verdict

    @property
    def note(self) -> str:
        return feature(self.kind, self.name).note


class Task(msgspec.Struct):
    """One task as its source has it."""

    name: str
    """The name that Celery knows: what `name=` says, or the dotted path."""
    function: str
    """The dotted path."""
    path: str
    line: int
    uses: list[Use] = msgspec.field(default_factory=list)
    self_names: tuple[str, ...] = ()
    """By which its body names the task itself."""
    retries: float = 3
    """The most retries that the source allows: infinite, or `refused.UNKNOWN`."""

    @property
    def verdict(self) -> Verdict:
        return worst([use.verdict for use in self.uses])


def tasks_of(finder: Finder, module: Module) -> Iterator[tuple[Task, ast.AST]]:
    """Yield the tasks of a module with the nodes of their bodies."""
    yield from _within(finder, module, module.tree, "", ())


def _within(
    finder: Finder, module: Module, node: ast.AST, owner: str, around: tuple[str, ...]
) -> Iterator[tuple[Task, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            task = _decorated(finder, module, child, owner, around)
            if task is not None:
                yield task, child
            if f"{module.name}.{child.name}" not in finder.wrappers:
                yield from _within(
                    finder, module, child, f"{owner}{child.name}.", (*around, "nested")
                )
        elif isinstance(child, ast.ClassDef):
            made = _class(finder, module, child, owner)
            if made is not None:
                yield made, child
            yield from _within(finder, module, child, f"{owner}{child.name}.", (*around, "method"))
        else:
            if isinstance(child, ast.Call):
                task = _called(finder, module, child, around)
                if task is not None:
                    yield task, child
            yield from _within(finder, module, child, owner, around)


def _decorated(
    finder: Finder,
    module: Module,
    node: ast.FunctionDef | ast.AsyncFunctionDef,
    owner: str,
    around: tuple[str, ...],
) -> Task | None:
    made = [(each, how) for each in node.decorator_list if (how := finder.decorates(module, each))]
    if not made or f"{module.name}.{node.name}" in finder.wrappers:
        return None
    decorator, how = made[0]
    function = f"{module.name}.{owner}{node.name}"
    task = Task(function, function, module.path, decorator.lineno)
    if how == "wrapper":
        task.uses.append(Use("shape", "wrapper", module.path, decorator.lineno))
    if around:
        task.uses.append(Use("shape", around[-1], module.path, node.lineno))
    if isinstance(node, ast.AsyncFunctionDef):
        task.uses.append(Use("shape", "async def", module.path, node.lineno))
    if any(isinstance(each, ast.Yield | ast.YieldFrom) for each in _own(node)):
        task.uses.append(Use("shape", "generator", module.path, node.lineno))
    bound = _options(task, decorator, finder, module) if isinstance(decorator, ast.Call) else False
    names = [node.name]
    parameters = [*node.args.posonlyargs, *node.args.args]
    if (bound or how == "wrapper") and parameters and (bound or parameters[0].arg == "self"):
        names.append(parameters[0].arg)
    task.self_names = tuple(names)
    return task


def _class(finder: Finder, module: Module, node: ast.ClassDef, owner: str) -> Task | None:
    """A class with `run` is a task; without, it is the base of some."""
    if not any(finder.is_task_class(module, base) for base in node.bases):
        return None
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    values = {
        target.id: each.value
        for each in node.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    abstract = values.get("abstract")
    if "run" not in methods or (isinstance(abstract, ast.Constant) and abstract.value):
        return None
    function = f"{module.name}.{owner}{node.name}"
    name = values.get("name")
    told = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
    task = Task(told or function, function, module.path, node.lineno, self_names=("self",))
    task.uses.append(Use("shape", "class", module.path, node.lineno))
    if "max_retries" in values:
        task.retries = retries_of(values["max_retries"])
    for option in [*values, *methods]:
        if option in OPTIONS:
            task.uses.append(Use("option", option, module.path, node.lineno))
    return task


def _called(finder: Finder, module: Module, node: ast.Call, around: tuple[str, ...]) -> Task | None:
    """`app.task(function)` or `shared_task(name=...)(function)`, not as a decorator."""
    maker: ast.expr = node
    given = node.args[:1]
    if isinstance(node.func, ast.Call):
        maker = node.func
    if not given or finder.decorates(module, maker) is None or around:
        return None
    [function] = given
    path = finder.project.resolve(module, function)
    if path is None and not isinstance(function, ast.Lambda):
        return None
    task = Task(path or "lambda", path or "lambda", module.path, node.lineno)
    if isinstance(function, ast.Lambda):
        task.uses.append(Use("shape", "lambda", module.path, node.lineno))
    assert isinstance(maker, ast.Call)
    _options(task, maker, finder, module)
    return task


def _options(task: Task, call: ast.Call, finder: Finder, module: Module) -> bool:
    """Note the options of a decorator; return whether the task is bound."""
    bound = False
    for keyword in call.keywords:
        name, value = keyword.arg or "**", keyword.value
        task.uses.append(Use("option", name, module.path, value.lineno))
        constant = value.value if isinstance(value, ast.Constant) else None
        bound |= name == "bind" and constant is not False
        if name == "name" and isinstance(constant, str):
            task.name = constant
        if name == "base":
            task.uses += _base(finder, module, value)
        if name == "max_retries":
            task.retries = retries_of(value)
        if name == "retry_kwargs":
            task.retries = UNKNOWN
        if name == "serializer" and constant not in ("json", None):
            task.uses.append(Use("argument", "pickle", module.path, value.lineno))
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        task.name = first.value
    return bound


def _base(finder: Finder, module: Module, value: ast.expr) -> Iterator[Use]:
    if finder.is_other_class(module, value):
        yield Use("option", OTHER_BASE, module.path, value.lineno)
    elif finder.project.resolve(module, value) in finder.senders:
        yield Use("option", "apply_async", module.path, value.lineno)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function and in no function within."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function):
            yield child
            yield from _own(child)
