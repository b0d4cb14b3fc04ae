"""Runs a command with a PostgreSQL at hand: `python scripts/with_postgres.py COMMAND '{url}' ...`.

Every `{url}` in the command becomes the URL of an empty database. The server is the one that
`LATE_POSTGRES_URL` names (its database is used as it is), else a private one is started for the
time of the command, from installed binaries or from the wheel that carries them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from late.errors import LateError
from late.testing.servers.databases import POSTGRES_VARIABLE, postgres


def main(command: Sequence[str]) -> int:
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    if not os.environ.get(POSTGRES_VARIABLE):
        print(
            f"[postgres] {POSTGRES_VARIABLE} is not set: starting a private server",
            file=sys.stderr,
            flush=True,
        )
    try:
        with postgres() as url:
            filled = [word.replace("{url}", url) for word in command]
            return subprocess.run(filled, check=False).returncode
    except LateError as refused:
        print(f"[postgres] {refused}; or set {POSTGRES_VARIABLE}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
