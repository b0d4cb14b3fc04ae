"""The deployment's keys as one process knows them; see `late/model/deployment_keys.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Self

from late.api.pull.receipts import Receipt, UnknownReceipt, unseal
from late.concurrency import in_thread
from late.errors import LateError
from late.model.deployment_keys import LOAD_EVERY_S, DeploymentKey, accepted, sealing
from late.worker.background import BackgroundJob

RENEW_EVERY_S = 1.0
"""Callers that show an unknown key cause one read in this time."""


class Keyring:
    """Keys that are read again and again, so that a new one needs no restart.

    Args:
        read: returns all keys; blocks, and is called in a thread.
        now_us: the database's time.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[DeploymentKey]],
        now_us: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._now_us = now_us
        self._clock = clock
        self._keys: Sequence[DeploymentKey] = ()
        self._renewing = asyncio.Lock()
        self._renewed_s = -RENEW_EVERY_S

    @classmethod
    def of(cls, value: bytes) -> Self:
        """Make one that has a single key and reads none."""
        keys = [DeploymentKey(1, value, 0)]
        made = cls(lambda: keys, lambda: 0)
        made._keys = keys
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

    async def renew(self) -> None:
        """Read all keys because one is unknown: this process was paused, or was cut off."""
        async with self._renewing:
            if self._clock() - self._renewed_s >= RENEW_EVERY_S:
                self._renewed_s = self._clock()
                with suppress(LateError):  # those that are known still count
                    await self.load()

    async def unseal(self, text: str) -> Receipt:
        """Return the receipt that a process of this deployment sealed.

        Raises:
            UnknownReceipt: see `late.api.pull.receipts.unseal`.
        """
        try:
            return unseal(self.accepted, text)
        except UnknownReceipt:
            await self.renew()
            return unseal(self.accepted, text)

    def job(self) -> BackgroundJob:
        """Make the job that reads them again and again."""
        return BackgroundJob(name="keys", run=self.load, period_s=LOAD_EVERY_S)
