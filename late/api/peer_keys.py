"""The deployment's keys as one process knows them; see `late/model/deployment_keys.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

from late.concurrency import in_thread
from late.model.deployment_keys import LOAD_EVERY_S, DeploymentKey, accepted, sealing
from late.worker.background import BackgroundJob


class Keyring:
    """Keys that are read again and again, so that a new one needs no restart.

    Args:
        read: returns all keys; blocks, and is called in a thread.
        now_us: the database's time.
    """

    def __init__(
        self, read: Callable[[], Sequence[DeploymentKey]], now_us: Callable[[], int]
    ) -> None:
        self._read = read
        self._now_us = now_us
        self._keys: Sequence[DeploymentKey] = ()

    @classmethod
    def of(cls, value: bytes) -> Self:
        """Make one that has a single key and reads none."""
        made = cls(list, lambda: 0)
        made._keys = [DeploymentKey(1, value, 0)]
        return made

    @property
    def current(self) -> bytes:
        """The key to seal with."""
        return sealing(self._keys, self._now_us()).value

    @property
    def accepted(self) -> list[bytes]:
        """The keys with which another process may have sealed, the newest first."""
        return [key.value for key in accepted(self._keys, self._now_us())]

    async def load(self) -> None:
        """Read all keys. Raises `StoreError`."""
        self._keys = await in_thread(self._read)

    def job(self) -> BackgroundJob:
        """Make the job that reads them again and again."""
        return BackgroundJob(name="keys", run=self.load, period_s=LOAD_EVERY_S)
