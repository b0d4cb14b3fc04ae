"""Runs a `Supervisor` as a program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from late.config import WorkerConfig
from late.errors import ConfigError
from late.supervisor.supervisor import Supervisor


def run(
    command: Sequence[str], count: int, settings: WorkerConfig, reload: Path | None = None
) -> int:
    """Run `count` children until SIGTERM or SIGINT, and return the exit code.

    Args:
        reload: for development: a folder; a change of a Python file in it restarts all children.

    Raises:
        ConfigError: see `Supervisor`; or a setting is for one process.
    """
    if settings.wake_port is not None:
        raise ConfigError(
            "--wake-port is for one process: not with --processes, LATE_PROCESSES or --reload"
        )

    async def serve() -> int:
        supervisor = Supervisor(command, count, settings, patient=reload is not None)
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
