"""Find the tasks of a project: what makes a function or a class a task, and what it uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import msgspec

from late.celery.scan.features import OPTIONS, Verdict, feature, worst
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
APPS = frozenset(("celery.Celery", "celery.app.base.Celery", "celery.current_app"))
ROUTERS = frozenset(("late.celery.router.Router", "late.celery.router.router.Router"))
APP_NAMES = ("app", "celery", "celery_app", "capp", "current_app")

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

    @property
    def verdict(self) -> Verdict:
        return worst([use.verdict for use in self.uses])


class Finder:
    """Knows which expressions are apps, decorators and task classes in a project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.apps: set[str] = set()
        self.wrappers: set[str] = set()
        """Decorators of the project that make tasks."""
        self.bases: set[str] = set()
        """Classes of the project that derive from Celery's."""
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
        return (
            isinstance(node, ast.Attribute)
            and node.attr == "Task"
            and self.is_app(module, node.value)
        )

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
    if any(isinstance(each, ast.Yield | ast.YieldFrom) for each in _own(node)):
        task.uses.append(Use("shape", "generator", module.path, node.lineno))
    bound = _options(task, decorator, module) if isinstance(decorator, ast.Call) else False
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
    _options(task, maker, module)
    return task


def _options(task: Task, call: ast.Call, module: Module) -> bool:
    """Note the options of a decorator; return whether the task is bound."""
    bound = False
    for keyword in call.keywords:
        name, value = keyword.arg or "**", keyword.value
        task.uses.append(Use("option", name, module.path, value.lineno))
        constant = value.value if isinstance(value, ast.Constant) else None
        bound |= name == "bind" and constant is not False
        if name == "name" and isinstance(constant, str):
            task.name = constant
        if name == "serializer" and constant not in ("json", None):
            task.uses.append(Use("argument", "pickle", module.path, value.lineno))
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        task.name = first.value
    return bound


def _passes_on(call: ast.Call, given: set[str]) -> bool:
    """Return whether `shared_task(**options)(function)` and the like is made of parameters."""
    passed = [*call.args, *(each.value for each in call.keywords if each.arg is None)]
    return any(isinstance(each, ast.Name) and each.id in given for each in passed)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in a function and in no function within."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function):
            yield child
            yield from _own(child)


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
