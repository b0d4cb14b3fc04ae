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
from late.testing.postgres import PostgresServer

VARIABLE = "LATE_POSTGRES_URL"


def run(command: Sequence[str], url: str) -> int:
    """Run `command` with `url` filled in; its exit code."""
    return subprocess.run([word.replace("{url}", url) for word in command], check=False).returncode


def main(command: Sequence[str]) -> int:
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    given = os.environ.get(VARIABLE)
    if given:
        return run(command, given)
    print(
        f"[postgres] {VARIABLE} is not set: starting a private server", file=sys.stderr, flush=True
    )
    try:
        with PostgresServer() as server:
            return run(command, server.url)
    except LateError as refused:
        print(f"[postgres] {refused}; or set {VARIABLE}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
