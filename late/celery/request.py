"""`self.request` by Celery's names: the attempt that runs, or the task that has failed."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from late.celery.exceptions import Retry

HOSTNAME = f"{socket.gethostname()}:{os.getpid()}"


class Request(msgspec.Struct):
    """The attempt that runs, as `self.request`."""

    id: str | None = None
    task: str = ""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    retries: int = 0
    headers: Mapping[str, str] = {}
    eta: str | None = None
    expires: str | None = None
    delivery_info: Mapping[str, Any] = {}
    hostname: str = HOSTNAME
    is_eager: bool = False
    called_directly: bool = True
    time_limit: float | None = None
    soft_time_limit: float | None = None
    asked: Retry | None = None
    """The retry that `retry(throw=False)` asked for."""
    exhausted: bool = False
    """`retry` has said that no retries are left: `autoretry_for` does not find some again."""

    wrapped: bool = False
    """A class with its own `__call__` runs, and has not called that of `Task` yet."""

    @property
    def timelimit(self) -> tuple[float | None, float | None]:
        """The hard and the soft limit, in seconds."""
        return self.time_limit, self.soft_time_limit
