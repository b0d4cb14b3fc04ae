"""Puts a mutant in the place of its module, in every Python that finds this file on its path.

`LATE_TEST_MUTANT` names a file with JSON: the module's path from the root of the project, and its
changed code. The tree is not touched, so mutants are tried side by side, and what was compiled of
the other modules is kept.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType

VARIABLE = "LATE_TEST_MUTANT"
_ROOT = Path(__file__).resolve().parents[3]


class _Loader(SourceFileLoader):
    """Compiles the changed code, and keeps nothing of it."""

    def __init__(self, name: str, path: str, code: str) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._code, self.path, "exec", dont_inherit=True)


class Finder:
    """Finds one module: the one that is changed."""

    def __init__(self, module: str, code: str) -> None:
        self._path, self._code = _ROOT / module, code
        self._name = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        loader = _Loader(name, str(self._path), self._code)
        return importlib.util.spec_from_file_location(name, self._path, loader=loader)


def install() -> None:
    """Do nothing if no mutant is asked for."""
    if asked := os.environ.get(VARIABLE):
        mutant = json.loads(Path(asked).read_text())
        sys.meta_path.insert(0, Finder(mutant["module"], mutant["code"]))  # type: ignore[arg-type]


install()
