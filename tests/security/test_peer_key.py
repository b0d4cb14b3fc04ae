"""Whoever only reads the database, or only enqueues, is no peer: the key is the workers' alone."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest

from late.api.access.peer_keys import Keyring
from late.api.errors import Unavailable
from late.api.fleet.peers import AnswerRequest, Peer
from late.api.pull.deliveries import TakeRequest
from late.api.pull.receipts import Receipt, seal, unseal
from late.cli import main
from late.control import Control
from late.handler.classify import Verdict
from late.schema import migrate
from late.schema.engine import make_engine, writing
from tests.integration.serve_kit import Serving, serving
from tests.security.logins import made, open_as, texts
from tests.support import sqlite

TAKE = TakeRequest(
    "default",
    ("payments",),
    limit=1,
    wait_s=10.0,
    visibility_s=60.0,
    consumer="eve",
    names=None,
)
DONE = Verdict("done")


@pytest.fixture
def logins() -> Iterator[dict[str, str]]:
    with made() as urls:
        yield urls


def keys_of(found: set[str]) -> set[bytes]:
    """Make every key that could be made of what was read."""
    made: set[bytes] = {b""}
    for text in found:
        made.add(text.encode())
        for decode in (bytes.fromhex, base64.b64decode):
            try:
                made.add(decode(text))
            except ValueError:
                continue
    return made


async def refused(it: Serving, key: bytes, receipt: Receipt) -> None:
    peer = Peer("w", it.at, Keyring.of(key), None)
    try:
        for call in (
            peer.describe(),
            peer.take(TAKE),
            peer.say(AnswerRequest(receipt, DONE)),
            peer.say(AnswerRequest(receipt, extend_s=60.0)),
            peer.drop("eve"),
        ):
            with pytest.raises(Unavailable, match="UNAUTHENTICATED"):
                await call
    finally:
        await peer.close()
    forged = seal(key, msgspec.structs.replace(receipt, serial=receipt.serial))
    for path in ("ack", "extend"):
        assert (await it.call("POST", f"/v1/{path}", {"receipt": forged})).status in (400, 404, 409)


async def test_a_reader_and_a_producer_take_and_end_nothing(logins: dict[str, str]) -> None:
    async with serving(logins["owner"]) as it:
        task_id = await it.put()
        (task,) = await it.receive(visibility_s=60)
        with Control(logins["worker"]) as control:
            key = await asyncio.to_thread(lambda: control.tokens.peer_keys()[0].value)
        receipt = unseal([key], task["receipt"])
        tried: set[bytes] = set()
        for role in ("viewer", "enqueuer", "operator"):
            found = await asyncio.to_thread(texts, logins[role])
            keys = keys_of(found)
            assert key not in keys, role
            assert not any(key.hex() in text for text in found), role
            for guess in keys - tried:
                await refused(it, guess, receipt)
            tried |= keys
        assert await it.state(task_id) != "settled"
        # A login of a worker is a peer: it takes the next task, and ends the first one.
        following = await it.put()
        peer = Peer("w", it.at, Keyring.of(key), None)
        try:
            taken = await peer.take(TAKE)
            assert [each.attempt.record.task_id for each in taken] == [following]
            await peer.say(AnswerRequest(receipt, DONE))
        finally:
            await peer.close()


@pytest.mark.parametrize("role", ["viewer", "enqueuer", "operator"])
def test_the_key_is_refused(logins: dict[str, str], role: str) -> None:
    with closing(open_as(logins[role])) as connection:
        for statement in (
            "select peer_key from late_secret",
            "select * from late_secret",
            "update late_secret set peer_key = ''",
            "insert into late_secret values ('2', '', '')",
            "delete from late_secret",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement)


def test_the_page_runs_with_an_operators_login(logins: dict[str, str]) -> None:
    with Control(logins["operator"]) as control:
        assert len(control.tokens.form_key()) == 32
    with Control(logins["worker"]) as control:
        assert control.tokens.form_key() != control.tokens.peer_keys()[0].value


def test_a_migration_makes_the_old_key_worthless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = sqlite.database(tmp_path / "queue.db")
    migrate.downgrade(url, "0012")
    engine = make_engine(url)
    old = "ab" * 32
    with writing(engine) as connection:
        connection.exec_driver_sql(f"insert into late_meta values ('receipt_key', '{old}')")
    with pytest.raises(SystemExit) as ended:
        main(["migrate", url])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "applied 0013" in said
    assert "Stop all workers" in said
    assert "late roles sql" in said
    with writing(engine) as connection:
        assert (
            "receipt_key" not in connection.exec_driver_sql("select key from late_meta").scalars()
        )
    engine.dispose()
    with Control(url) as control:
        assert control.tokens.peer_keys()[0].value != bytes.fromhex(old)
        assert len(control.tokens.peer_keys()[0].value) == 32
