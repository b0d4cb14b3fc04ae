"""Read the Python files of a project, and resolve names to what they were imported from."""

from __future__ import annotations

import ast
import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

SKIPPED = frozenset(
    ("node_modules", "__pycache__", "site-packages", "venv", "env", "build", "dist", "migrations")
)
"""Folders that hold no source of the project; so do those whose names begin with a dot."""
HOPS_MAX = 8
"""The number of modules that may pass a name on."""
FILE_BYTES_MAX = 4 * 1024 * 1024
DEPTH_MAX = 200
"""Code that is nested deeper would end the stack of whoever visits it; what people write has 80."""


class Unreadable(msgspec.Struct, frozen=True):
    """A file that is no Python of this version."""

    path: str
    line: int
    reason: str


class Module:
    """One file: its tree, its dotted name, and what its names were imported from.

    Raises:
        RecursionError: it is nested deeper than `DEPTH_MAX`.
    """

    def __init__(self, path: str, name: str, tree: ast.Module, *, package: bool) -> None:
        self.path = path
        self.name = name
        self.tree = tree
        parts = name.split(".")
        self._package = parts if package else parts[:-1]
        self.imports: dict[str, str] = {}
        """Local name -> dotted name, wherever in the file it is imported."""
        self.imported: list[tuple[str, int]] = []
        """The dotted names that are imported, each with its line."""
        self.defined = {each for node in tree.body for each in _bound(node)}
        self.classes: list[ast.ClassDef] = []
        self.assigned: list[ast.Assign] = []
        self.typed: list[ast.AnnAssign] = []
        self.calls: list[ast.Call] = []
        for node in _walk(tree):  # once: a project has millions of nodes
            match node:
                case ast.Import():
                    self._import(node)
                case ast.ImportFrom():
                    self._import_from(node)
                case ast.ClassDef():
                    self.classes.append(node)
                case ast.Assign():
                    self.assigned.append(node)
                case ast.AnnAssign():
                    self.typed.append(node)
                case ast.Call():
                    self.calls.append(node)

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imported.append((alias.name, node.lineno))
            if alias.asname:
                self.imports[alias.asname] = alias.name
            else:
                first = alias.name.partition(".")[0]
                self.imports[first] = first

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            above = self._package[: len(self._package) - node.level + 1]
            base = ".".join([*above, *([base] if base else [])])
        for alias in node.names:
            if alias.name != "*":
                name = f"{base}.{alias.name}".lstrip(".")
                self.imported.append((name, node.lineno))
                self.imports[alias.asname or alias.name] = name

    def dotted(self, node: ast.expr | None) -> str | None:
        """Return the dotted name of an expression such as `tasks.send.delay`, or None."""
        if isinstance(node, ast.Name):
            if node.id in self.imports:
                return self.imports[node.id]
            return f"{self.name}.{node.id}" if node.id in self.defined else node.id
        if isinstance(node, ast.Attribute):
            before = self.dotted(node.value)
            return None if before is None else f"{before}.{node.attr}"
        return None


class Project:
    """The modules that were found, and the names that some of them pass on."""

    def __init__(self, modules: Sequence[Module], unreadable: Sequence[Unreadable] = ()) -> None:
        self.modules = list(modules)
        self.unreadable = list(unreadable)
        self._by_name = {module.name: module for module in modules}
        self._by_end: dict[str, list[Module]] = {}
        self._found: dict[str, Module | None] = {}
        self._origins: dict[str, str] = {}
        for module in modules:
            self._by_end.setdefault(module.name.rpartition(".")[2], []).append(module)

    def module(self, name: str) -> Module | None:
        """Return the module of a dotted name, which may begin above or below the scanned folder."""
        if name not in self._found:
            self._found[name] = self._by_name.get(name) or self._by_suffix(name)
        return self._found[name]

    def _by_suffix(self, name: str) -> Module | None:
        if "." not in name or name.startswith("celery."):
            return None  # as likely somebody else's
        same_end = [
            module
            for module in self._by_end.get(name.rpartition(".")[2], [])
            if module.name.endswith(f".{name}")
            or ("." in module.name and name.endswith(f".{module.name}"))
        ]
        return same_end[0] if len(same_end) == 1 else None

    def origin(self, dotted: str) -> str:
        """Follow a name through the modules that import it, to the one that defines it."""
        if dotted not in self._origins:
            self._origins[dotted] = self._follow(dotted)
        return self._origins[dotted]

    def _follow(self, dotted: str) -> str:
        for _ in range(HOPS_MAX):
            base, _, last = dotted.rpartition(".")
            module = self.module(base) if base else None
            if module is None:
                return dotted
            if last not in module.imports:
                return f"{module.name}.{last}"
            if module.imports[last] == dotted:
                return dotted
            dotted = module.imports[last]
        return dotted

    def resolve(self, module: Module, node: ast.expr | None) -> str | None:
        """Return where the name of an expression is defined, or None if it is no name."""
        dotted = module.dotted(node)
        return None if dotted is None else self.origin(dotted)


def read(*roots: Path) -> Project:
    """Read folders or files. Nothing is imported."""
    modules, unreadable = [], []
    found = [(root, path) for root in roots for path in sorted(_files(root))]
    for root, path in found:
        shown = os.path.relpath(path, root) if root.is_dir() else path.name
        try:
            text = _text(path)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of odd escapes in somebody's strings
                tree = ast.parse(text)
            modules.append(
                Module(shown, _name(path, root), tree, package=path.name == "__init__.py")
            )
        except SyntaxError as error:
            unreadable.append(Unreadable(shown, error.lineno or 0, error.msg))
        except (ValueError, OSError, RecursionError, MemoryError) as error:
            unreadable.append(Unreadable(shown, 0, f"{type(error).__name__}: {error}"))
    return Project(modules, unreadable)


def parse(text: str, *, name: str = "tasks", path: str = "tasks.py") -> Project:
    """Return a project of one text."""
    return Project([Module(path, name, ast.parse(text), package=False)])


def _walk(tree: ast.Module) -> Iterator[ast.AST]:
    left: deque[tuple[ast.AST, int]] = deque([(tree, 0)])
    while left:
        node, depth = left.popleft()
        if depth > DEPTH_MAX:
            raise RecursionError(f"nested deeper than {DEPTH_MAX}")
        yield node
        left.extend((child, depth + 1) for child in ast.iter_child_nodes(node))


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, folders, files in os.walk(root):
        folders[:] = [
            each
            for each in folders
            if each not in SKIPPED
            and not each.startswith(".")
            and not Path(folder, each, "pyvenv.cfg").exists()
        ]
        for name in files:
            if name.endswith(".py"):
                yield Path(folder, name)


def _text(path: Path) -> bytes:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise ValueError(f"larger than {FILE_BYTES_MAX} bytes")
    return path.read_bytes()


def _name(path: Path, root: Path) -> str:
    """Return the dotted name: from the highest folder that is a package, or below `root`."""
    top = path.parent
    while (top / "__init__.py").exists() and top != top.parent:
        top = top.parent
    if root.is_dir() and top.is_relative_to(root) and top == path.parent:
        top = root  # a folder without packages
    parts = list(path.relative_to(top).with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts) or path.parent.name


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.If | ast.Try | ast.With):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from _bound(child)
