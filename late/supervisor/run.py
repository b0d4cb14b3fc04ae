"""Runs a `Supervisor` as a program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from late.errors import ConfigError
from late.supervisor.supervisor import Supervisor
from late.worker.reload import Reading


def run(
    command: Sequence[str],
    count: int,
    read: Callable[[], Reading],
    reload: Path | None = None,
) -> int:
    """Run `count` children until SIGTERM or SIGINT, and return the exit code.

    Args:
        read: reads the settings: now, and again at each SIGHUP.
        reload: for development: a folder; a change of a Python file in it restarts all children.

    Raises:
        ConfigError: see `Supervisor`; or a setting is for one process.
    """
    if read().worker.wake_port is not None:
        raise ConfigError(
            "--wake-port is for one process: not with --processes, LATE_PROCESSES or --reload"
        )

    async def serve() -> int:
        supervisor = Supervisor(command, count, read, patient=reload is not None)
        await supervisor.start()
        if changes is None:
            return await supervisor.wait()
        watching = asyncio.create_task(supervisor.reload_on(changes))
        code = await supervisor.wait()
        watching.cancel()
        return code

    changes = None if reload is None else python_changes(reload)
    return asyncio.run(serve())


def python_changes(folder: Path) -> AsyncIterator[object]:
    """Yield whenever Python files in `folder` have changed.

    Raises:
        ConfigError: watchfiles is not installed.
    """
    try:
        from watchfiles import PythonFilter, awatch
    except ImportError:
        raise ConfigError("--reload needs watchfiles: pip install 'late-queue[reload]'") from None
    return awatch(folder, watch_filter=PythonFilter())
