"""A worker whose login lacks the rights of one ends with code 1, and says why once. The migration
says who may run it."""

from __future__ import annotations

import asyncio
import logging

import pytest

import late
from late.config import WorkerConfig
from late.errors import StoreRefused
from late.schema import migrate
from late.schema.roles import ROLES
from late.store import open_store
from late.worker.worker import Worker
from tests.security.logins import made


@pytest.mark.parametrize("role", ["viewer", "enqueuer"])
async def test_a_worker_with_the_login_of_another_role_ends(
    role: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "late")
    with made() as urls:
        store = open_store(urls["owner"])
        await store.open()  # it writes the identity of the database, as the first worker does
        await store.close()
        worker = Worker(late.App(urls[role]), settings=WorkerConfig(waking="off"))
        async with asyncio.timeout(60):
            try:
                await worker.start()
            except StoreRefused:
                return  # `late worker` says it in one line
            assert await worker.wait() == 1
    told = [each.getMessage() for each in caplog.records]
    assert [each for each in told if "permission denied" in each] != []
    assert [each for each in told if "the worker stops" in each] != []
    assert [each for each in told if "component=heartbeat" in each] == []


def test_only_the_owner_migrates_and_the_message_says_so() -> None:
    with made() as urls:
        for role in ROLES:
            with pytest.raises(StoreRefused, match="as the owner of the tables of late"):
                migrate.upgrade(urls[role])
        assert migrate.upgrade(urls["owner"]) == []
