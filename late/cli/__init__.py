"""The command line: `late --help`.

Only this package prints. Every command is a thin shell over a module that a program could use as
well; those modules are imported inside the command, so that `late --help` and a mistyped option
cost no database driver.

Exit codes, for scripts:

- 0: it worked;
- 1: it failed (the database, a worker), or the answer is a finding (`doctor` found a fault,
  `show` knows no such task);
- 2: the command was wrong: an option, a URL, a name that does not exist. Nothing was done;
- 130: interrupted.
"""

from __future__ import annotations

import late
from late.errors import OVERWRITTEN

# Where another distribution's `late/__init__.py` came last, ours cannot say so itself.
if "App" not in late.__all__:
    raise ImportError(OVERWRITTEN)

from late.cli.main import main

__all__ = ["main"]
