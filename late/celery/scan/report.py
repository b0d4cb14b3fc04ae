"""Scan a project, and add up what is found."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

import msgspec

from late.celery.scan.calls import Call, CallFinder
from late.celery.scan.features import feature
from late.celery.scan.finder import Finder
from late.celery.scan.project import Project, Unreadable, read
from late.celery.scan.refused import imports_of
from late.celery.scan.settings import settings_of
from late.celery.scan.sources import Sources
from late.celery.scan.tasks import Task, Use, tasks_of
from late.celery.scan.verdict import ORDER, Verdict, worst


class Missing(msgspec.Struct, frozen=True):
    """A feature that is not the same here, and how much depends on it."""

    feature: str
    verdict: Verdict
    note: str
    tasks: int
    """The number of tasks that use it, or are called with it."""
    uses: int
    first: str
    """Path and line of one use."""


class Scan(msgspec.Struct):
    """The result for one project."""

    tasks: list[Task]
    calls: list[Call]
    others: list[Use]
    """Uses of no task: settings, signals, schedules."""
    unreadable: list[Unreadable]
    unseen: list[str] = msgspec.field(default_factory=list)
    """Names of tasks that the app has and the source does not show."""

    def uses_of(self, task: Task) -> list[Use]:
        """Return what a task uses, in its source and in the calls of it."""
        called = [use for call in self.calls if task.name in call.tasks for use in call.uses]
        return [*task.uses, *called]

    def verdicts(self) -> dict[str, Verdict]:
        """Return name -> verdict of every task, with its calls."""
        by_task: dict[str, list[Verdict]] = defaultdict(list)
        for call in self.calls:
            for name in call.tasks:
                by_task[name] += [use.verdict for use in call.uses]
        return {task.name: worst([task.verdict, *by_task[task.name]]) for task in self.tasks}

    def counts(self) -> dict[Verdict, int]:
        """Return verdict -> number of tasks."""
        verdicts = self.verdicts()
        found = Counter(verdicts[task.name] for task in self.tasks)  # names can be equal
        return {verdict: found[verdict] for verdict in ORDER}

    def missing(self) -> list[Missing]:
        """Return what is not the same, by how many tasks it blocks."""
        uses: dict[str, list[Use]] = defaultdict(list)
        tasks: dict[str, set[str]] = defaultdict(set)
        for task in self.tasks:
            for use in task.uses:
                uses[use.feature].append(use)
                tasks[use.feature].add(task.name)
        for call in self.calls:
            for use in call.uses:
                uses[use.feature].append(use)
                tasks[use.feature].update(call.tasks)
        for use in self.others:
            uses[use.feature].append(use)
        found = [
            Missing(
                name,
                each[0].verdict,
                each[0].note,
                len(tasks[name]),
                len(each),
                f"{each[0].path}:{each[0].line}",
            )
            for name, each in uses.items()
            if each[0].verdict != "same"
        ]
        return sorted(found, key=lambda m: (-ORDER.index(m.verdict), -m.tasks, -m.uses, m.feature))

    def silent(self) -> list[Use]:
        """Return what goes on without an error, and may mean something else."""
        every = [*self.others]
        for uses in [*(task.uses for task in self.tasks), *(call.uses for call in self.calls)]:
            every += uses
        return [use for use in every if feature(use.kind, use.name).silent]

    @property
    def at_most_once(self) -> int:
        """The number of tasks that Celery runs at most once: without `acks_late`."""
        if any(use.name == "task_acks_late" for use in self.others):
            return 0
        return sum(all(use.name != "acks_late" for use in task.uses) for task in self.tasks)

    @property
    def worst(self) -> Verdict:
        """The worst verdict of all, settings included."""
        every = [*self.verdicts().values(), *(use.verdict for use in self.others)]
        every += [use.verdict for call in self.calls for use in call.uses]
        every += ["edit" for _ in self.unseen]  # Nobody knows what they use.
        return worst(every)


def scan(root: Path) -> Scan:
    """Scan a folder or a file.

    Raises:
        FileNotFoundError: there is no such path.
    """
    if not root.exists():
        raise FileNotFoundError(root)
    return scan_project(read(root))


def scan_project(project: Project) -> Scan:
    """Scan modules that have been read."""
    finder = Finder(project)
    if not finder.uses_celery:
        return Scan([], [], [], project.unreadable)
    found: list[Task] = []
    bodies: dict[str, dict[ast.AST, Task]] = defaultdict(dict)
    for module in project.modules:
        for task, node in tasks_of(finder, module):
            found.append(task)
            bodies[module.path][node] = task
    by_path = {task.function: task for task in found}
    calls: list[Call] = []
    others: list[Use] = []
    sources = Sources(finder)
    for module in project.modules:
        visitor = CallFinder(finder, module, by_path, bodies[module.path])
        visitor.visit(module.tree)
        calls += visitor.calls
        others += [*visitor.uses, *settings_of(finder, module, sources)]
        others += [Use("import", name, module.path, at) for name, at in imports_of(finder, module)]
    return Scan(found, calls, others, project.unreadable)
