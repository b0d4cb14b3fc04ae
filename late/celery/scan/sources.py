"""Find where an app takes its settings from: modules, classes and mappings, however it names them.

`config_from_object(CELERY)`, `conf.update(...)` and the like are followed through names, keys such
as `config["CELERY"]`, `dict(...)` and `{**other}`. What cannot be followed is told.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from late.celery.scan.finder import Finder
from late.celery.scan.project import Module

DEPTH_MAX = 50
"""The number of names that are followed, one from the other."""
BY_NAME = (".config", "django.conf.settings", "os.environ")
"""Objects whose settings are found by their names in capitals, wherever those are set."""


class Given(NamedTuple):
    """One setting, or a place whose settings cannot be read: it has no value."""

    module: Module
    name: str
    value: ast.expr | None
    line: int


class Sources:
    """The apps of a project take their settings from these.

    `modules` are those whose lower-case names are settings, `prefixes` what names in capitals begin
    with, and `given` the settings of classes and mappings.
    """

    def __init__(self, finder: Finder) -> None:
        self._finder = finder
        self._project = finder.project
        self.modules = {
            module.name
            for module in self._project.modules
            if module.name.rpartition(".")[2] == "celeryconfig"
        }
        self.prefixes: set[str] = set()
        self.given: list[Given] = []
        self._seen: set[ast.expr] = set()
        for module in self._project.modules:
            for call in module.calls:
                self._read(module, call)

    def _read(self, module: Module, call: ast.Call) -> None:
        named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        function = call.func
        if self._finder.makes_app(module, function):
            source, namespace = named.get("config_source"), named.get("namespace")
            if (changes := named.get("changes")) is not None:
                self.given += self._follow(module, changes)
        elif not isinstance(function, ast.Attribute):
            return
        elif function.attr == "config_from_object" and self._is_app(module, function.value):
            source = call.args[0] if call.args else named.get("obj")
            namespace = named.get("namespace") or (call.args[3] if len(call.args) > 3 else None)
        elif function.attr == "config_from_envvar" and self._is_app(module, function.value):
            self.given.append(Given(module, "", None, call.lineno))
            return
        elif function.attr in ("update", "add_defaults") and self._finder.is_conf(
            module, function.value
        ):
            for each in call.args:
                self.given += self._follow(module, each)
            self.given += self._keywords(module, call, DEPTH_MAX)
            return
        else:
            return
        if isinstance(namespace, ast.Constant) and isinstance(namespace.value, str):
            self.prefixes.add(namespace.value.rstrip("_").upper() + "_")
        elif source is not None:
            self.given += self._follow(module, source)

    def _is_app(self, module: Module, node: ast.expr) -> bool:
        return self._finder.is_app(module, node)

    def _follow(self, module: Module, node: ast.expr, left: int = DEPTH_MAX) -> Iterator[Given]:
        """Yield the settings that an expression has."""
        unread = Given(module, "", None, node.lineno)
        if node in self._seen:
            return  # Also `found = {**found, "timezone": "UTC"}`.
        self._seen.add(node)
        if left == 0:
            yield unread
            return
        match node:
            case ast.Constant(value=str(name)):
                yield from self._named(name.replace(":", "."), unread, left)
            case ast.Dict():
                yield from self._items(module, node, left)
            case ast.Call(func=ast.Name(id="dict")):
                for each in node.args:
                    yield from self._follow(module, each, left - 1)
                yield from self._keywords(module, node, left)
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
                yield from self._by_key(key, unread, left)
            case ast.Call(args=[]):  # An object of a class.
                yield from self._follow(module, node.func, left - 1)
            case ast.Subscript(slice=ast.Constant(value=str(key))):
                yield from self._by_key(key, unread, left)
            case ast.BinOp(op=ast.BitOr(), left=first, right=second):
                yield from self._follow(module, first, left - 1)
                yield from self._follow(module, second, left - 1)
            case ast.Name() | ast.Attribute():
                yield from self._of_name(module, node, unread, left)
            case _:
                yield unread

    def _items(self, module: Module, node: ast.Dict, left: int) -> Iterator[Given]:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                yield from self._follow(module, value, left - 1)
            elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield Given(module, key.value, value, value.lineno)
            else:
                yield Given(module, "", None, value.lineno)

    def _keywords(self, module: Module, call: ast.Call, left: int) -> Iterator[Given]:
        for keyword in call.keywords:
            if keyword.arg is None:
                yield from self._follow(module, keyword.value, left - 1)
            else:
                yield Given(module, keyword.arg, keyword.value, keyword.value.lineno)

    def _of_name(self, module: Module, node: ast.expr, unread: Given, left: int) -> Iterator[Given]:
        """Follow a name: of a variable here, in any function too, or of another module."""
        if isinstance(node, ast.Name) and node.id not in module.imports:
            values = list(_values(module, node.id))
            if values:
                for value in values:
                    yield from self._follow(module, value, left - 1)
                return
        found = self._project.resolve(module, node) or ""
        if found.endswith(BY_NAME):
            return
        if isinstance(node, ast.Attribute) and node.attr.isupper():
            yield from self._by_key(node.attr, unread, left)
        else:
            yield from self._named(found, unread, left)

    def _named(self, name: str, unread: Given, left: int) -> Iterator[Given]:
        """Follow a dotted name: of a module, of a class, or of a variable of a module."""
        if name in BY_NAME:
            return
        module = self._project.module(name)
        if module is not None:
            self.modules.add(module.name)
            return
        base, _, last = self._project.origin(name).rpartition(".")
        module = self._project.module(base) if base else None
        if module is None:
            yield unread
            return
        classes = [each for each in module.classes if each.name == last]
        values = [] if classes else list(_values(module, last))
        if not classes and not values:
            yield unread
        for value in values:
            yield from self._follow(module, value, left - 1)
        for each in classes:
            yield from self._of_class(module, each, left)

    def _of_class(self, module: Module, node: ast.ClassDef, left: int) -> Iterator[Given]:
        for base in node.bases:
            if not (isinstance(base, ast.Name) and base.id == "object"):
                yield from self._follow(module, base, left - 1)
        for name, value in _assigned(node.body):
            yield Given(module, name, value, value.lineno)

    def _by_key(self, key: str, unread: Given, left: int) -> Iterator[Given]:
        """Follow a key, wherever the project gives it a value: by a name, an item, a keyword."""
        found = [
            (module, value)
            for module in self._project.modules
            for value in (*_values(module, key), *_keyed(module, key))
        ]
        if not found:
            yield unread
        for module, value in found:
            yield from self._follow(module, value, left - 1)


def _assigned(nodes: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _values(module: Module, name: str) -> Iterator[ast.expr]:
    """Yield what a name is set to, anywhere in a module."""
    for found, value in _assigned([*module.assigned, *module.typed]):
        if found == name:
            yield value


def _keyed(module: Module, key: str) -> Iterator[ast.expr]:
    """Yield what stands under a key: `x["KEY"] = ...`, `f(KEY=...)`, `f({"KEY": ...})`."""
    for node in module.assigned:
        for target in node.targets:
            match target:
                case ast.Subscript(slice=ast.Constant(value=found)) if found == key:
                    yield node.value
    for call in module.calls:
        yield from (keyword.value for keyword in call.keywords if keyword.arg == key)
        for given in call.args:
            if isinstance(given, ast.Dict):
                for name, value in zip(given.keys, given.values, strict=True):
                    if isinstance(name, ast.Constant) and name.value == key:
                        yield value
