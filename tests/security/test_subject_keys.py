"""After its key was dropped, nothing of a subject opens: not with the keys and the database."""

from __future__ import annotations

import asyncio
import hmac
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import late
from late.control import Control, Filter
from late.errors import ConfigError, DecodeError, InvalidPolicy, InvalidTask, SubjectDropped
from late.outbox import connect, connect_async
from late.outbox.subject_keys import load
from late.payload import subject_keys
from late.payload.codec import Encrypted, Signed
from late.payload.subject_keys import SubjectKeyNeeded, subject_id
from late.payload.values import digest
from late.testing import drain, inline
from tests.integration.fleet_kit import until, working
from tests.security.logins import made, open_as
from tests.security.sealed_kit import changed, put, read
from tests.security.subject_kit import (
    BOTH,
    OLD,
    everything,
    keys_in,
    later,
    owned_app,
    put_key,
    ring,
)

ADA, BEA = subject_id("ada"), subject_id("bea")


def captured(app: late.App, number: int, name: str = "mail", **options: Any) -> Any:
    """The row that a producer would write, under a key that is in memory alone."""
    with inline(app) as box:
        app.enqueue(None, app.tasks[name].options(**options).call(number))  # type: ignore[call-overload]
        return box.pending[0].row


def test_each_subject_has_one_key_and_its_tasks_run(url: str) -> None:
    app, ran = owned_app(url)
    with connect(url) as tx:
        for n in range(4):
            app.tasks["invoice"].options(subject="ada").enqueue(tx, n)
            app.tasks["mail"].options(subject="bea", ordering_key="k").enqueue(tx, 10 + n)
        app.tasks["mail"].enqueue(tx, 20)
        app.enqueue_many(
            tx, [app.tasks["mail"].options(subject=f"s{n % 60}").call(100 + n) for n in range(120)]
        )
    kept = keys_in(url)
    assert {ADA, BEA} < set(kept)
    assert len(kept) == 62
    assert drain(app, wait_s=2.0) == {"done": 129}
    assert sorted(ran) == [*range(4), *range(10, 14), 20, *range(100, 220)]
    # And neither a name nor an argument is there to read
    assert not [each for each in everything(url) if each in (b"ada", b"bea")]


def test_nothing_opens_after_the_drop(url: str) -> None:
    """An attacker has the sealing keys, the rows and every value of the database afterwards."""
    app, ran = owned_app(url)
    with connect(url) as tx:
        for n in range(6):
            options: dict[str, Any] = {
                "headers": {"mail": "ada@example.com"},
                "unique_key": f"u{n}",
            }
            app.tasks["invoice"].options(subject="ada", **options).enqueue(tx, 4_000 + n)
        app.tasks["invoice"].options(subject="bea").enqueue(tx, 1)
    before = everything(url)
    wrapped = keys_in(url)[ADA]
    assert wrapped is not None
    secret = ring(app).unwrap(ADA, wrapped)
    sealed = [value for value in before if value.startswith(b"LE3 " + ADA.encode())]
    assert len(sealed) == 6
    assert secret not in before
    # Nor can the arguments be guessed by what stands beside a unique key
    codec: Any = app.codec
    for key in (codec.digest_key, b""):
        guessed = {digest("invoice", {"cents": 4_000 + n}, key).encode() for n in range(6)}
        assert not guessed & before
    assert digest("invoice", {"cents": 4_000}, secret).encode() in before
    with Control(url) as control:
        dropped = control.subject_keys.drop("ada")
        assert (dropped.subject, dropped.now) == (ADA, True)
        assert control.subject_keys.drop("ada") == msgspec.structs.replace(dropped, now=False)
    assert keys_in(url) == {ADA: None, BEA: keys_in(url)[BEA]}
    after = everything(url)
    for value in after:
        for key_id in OLD:
            with pytest.raises(DecodeError):
                ring(app).unwrap(ADA, value.decode("latin-1"))
            assert hmac.digest(OLD[key_id], value, "sha256") != secret
        assert secret not in value
        assert wrapped.encode() not in value
    # When the tasks run, they end, and keep nothing
    assert drain(app, wait_s=2.0) == {"done": 1, "dead": 6}
    assert ran == [1]
    with Control(url) as control:
        letters = control.dead_letters.find(Filter())
        assert {(e.reason, e.attempts, e.payload_bytes, e.headers) for e in letters} == {
            ("subject_dropped", 0, 0, None)
        }
        assert control.verify().ok
        # And a redrive is no way around
        assert control.dead_letters.redrive(Filter()).count == 6
    assert drain(app, wait_s=2.0) == {"dead": 6}
    with Control(url) as control:
        assert control.verify().ok


def test_a_file_keeps_no_copy_of_a_dropped_key(tmp_path: Path) -> None:
    from late.schema import migrate

    path = tmp_path / "late.db"
    url = f"sqlite:///{path}"
    migrate.upgrade(url)
    app, _ = owned_app(url)
    with connect(url) as tx:
        for n in range(200):
            app.tasks["mail"].options(subject=f"s{n}").enqueue(tx, n)
    texts = [str(wrapped).encode() for wrapped in keys_in(url).values()]

    def raw() -> bytes:
        return b"".join(each.read_bytes() for each in sorted(tmp_path.iterdir()))

    assert all(text in raw() for text in texts)
    with closing(sqlite3.connect(path)) as other, Control(url) as control:
        other.execute("select count(*) from late_task").fetchall()  # so the WAL is not removed
        for n in range(200):
            control.subject_keys.drop(f"s{n}")
        assert not [text for text in texts if text[8:40] in raw()]
    # Not a part of one either: the ends of texts are not on page borders
    assert not [text for text in texts if text[8:40] in raw() or text[-24:] in raw()]


def test_an_enqueue_after_the_drop_is_refused(url: str) -> None:
    app, _ = owned_app(url)
    task = app.tasks["mail"]
    with connect(url) as tx:
        task.options(subject="ada").enqueue(tx, 1)
    with Control(url) as control:
        control.subject_keys.drop("ada")
        with pytest.raises(ConfigError, match="no subject 'eve' has a key"):
            control.subject_keys.drop("eve")
    with connect(url) as tx:
        with pytest.raises(SubjectDropped, match=ADA):
            task.options(subject="ada").enqueue(tx, 2)
        with pytest.raises(SubjectDropped):
            app.enqueue_many(tx, [task.call(3), task.options(subject="ada").call(4)])
        task.options(subject="bea").enqueue(tx, 5)  # the transaction goes on
    assert drain(app, wait_s=2.0) == {"done": 1, "dead": 1}


async def test_an_async_producer_is_served(url: str) -> None:
    app, ran = owned_app(url)
    task = app.tasks["mail"]
    async with connect_async(url) as tx:
        await task.options(subject="ada").enqueue(tx, 1)
        await app.enqueue_many(tx, [task.options(subject="ada", unique_key="u").call(2)])
    assert await asyncio.to_thread(drain, app, wait_s=2.0) == {"done": 2}
    assert sorted(ran) == [1, 2]


def test_a_key_that_was_rolled_back_is_not_used_again(url: str) -> None:
    app, ran = owned_app(url)
    task = app.tasks["mail"].options(subject="ada")

    def fail() -> None:
        with connect(url) as tx:
            task.enqueue(tx, 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert keys_in(url) == {}
    with connect(url) as tx:
        task.enqueue(tx, 2)
    assert drain(app, wait_s=2.0) == {"done": 1}
    assert ran == [2]


def test_of_two_first_uses_one_makes_the_key() -> None:
    with _postgres() as url:
        app, ran = owned_app(url)
        task = app.tasks["mail"].options(subject="ada")
        first, second = open_as(url), open_as(url)
        with closing(first), closing(second):
            first.execute("begin")
            second.execute("begin")
            task.enqueue(first, 1)
            waits = threading.Thread(target=task.enqueue, args=(second, 2))
            waits.start()
            waits.join(0.3)
            assert waits.is_alive()  # It waits for the end of the first.
            first.execute("commit")
            waits.join()
            second.execute("commit")
        assert drain(app, wait_s=2.0) == {"done": 2}
        assert sorted(ran) == [1, 2]


def test_a_row_under_another_subject_is_refused(url: str) -> None:
    app, ran = owned_app(url)
    with connect(url) as tx:
        for subject in ("ada", "bea"):
            app.tasks["mail"].options(subject=subject).enqueue(tx, 0)
    assert drain(app, wait_s=2.0) == {"done": 2}
    genuine = ring(app).unwrap(ADA, str(keys_in(url)[ADA]))
    call = app.tasks["mail"].options(subject="ada", priority=3).call(7)
    row, *rows = app._rows.many([call] * 10, None, {ADA: genuine})
    copied = rows[8].payload.replace(ADA.encode(), BEA.encode(), 1)
    attacks = [
        changed(rows[0], subject=BEA),
        changed(rows[1], subject=None),
        changed(rows[2], subject=subject_id("nobody")),
        changed(rows[3], subject="x" * 4_000),
        changed(rows[4], priority=4),
        msgspec.structs.replace(rows[5], headers='{"a":"b"}'),
        msgspec.structs.replace(rows[6], payload=rows[6].payload[:40]),
        msgspec.structs.replace(rows[7], payload=b""),
        msgspec.structs.replace(changed(rows[8], subject=BEA), payload=copied),
    ]
    put(url, *attacks)
    later(app)
    assert drain(app, wait_s=2.0) == {"dead": len(attacks)}
    with Control(url) as control:
        found = control.dead_letters.find(Filter())
    assert {letter.reason for letter in found} == {"bad_signature"}
    assert ran == [0, 0]
    # And the row as it was sealed runs
    put(url, row)
    assert drain(app, wait_s=2.0) == {"done": 1}


def test_a_key_of_another_subject_is_refused(url: str) -> None:
    app, ran = owned_app(url)
    task = app.tasks["mail"]
    with connect(url) as tx:
        task.options(subject="ada").enqueue(tx, 1)
        task.options(subject="bea").enqueue(tx, 2)
    keys = keys_in(url)
    # When somebody keeps a copy of Ada's key in Bea's row, for after the drop
    put_key(url, BEA, str(keys[ADA]))
    with connect(url) as tx, pytest.raises(DecodeError, match="wrapped for another one"):
        task.options(subject="bea").enqueue(tx, 3)
    assert drain(app, wait_s=2.0) == {"done": 1, "dead": 1}
    assert ran == [1]
    with Control(url) as control:
        (letter,) = control.dead_letters.find(Filter())
        assert (letter.reason, letter.payload_bytes > 0) == ("bad_signature", True)
        # And when the row is as it was, the task runs
        put_key(url, BEA, str(keys[BEA]))
        control.dead_letters.redrive(Filter())
    later(app)
    assert drain(app, wait_s=2.0) == {"done": 1}


@pytest.mark.parametrize("text", ["", "TEsx", "not base64", "TEsxAms5" * 9, "TEsxAmsx"])
def test_a_text_that_is_no_key_is_refused(text: str) -> None:
    app, _ = owned_app("sqlite:///x.db")
    with pytest.raises(DecodeError):
        ring(app).unwrap(ADA, text)


def test_no_bit_of_a_key_or_payload_can_be_changed() -> None:
    app, _ = owned_app("sqlite:///x.db")
    row = captured(app, 1, subject="ada")
    task = app.tasks["mail"]
    assert task.decode(*read(row)) == {"cents": 1}
    for position in range(len(row.payload)):
        sealed = bytearray(row.payload)
        sealed[position] ^= 1
        with pytest.raises(DecodeError) as caught:
            task.decode(*read(msgspec.structs.replace(row, payload=bytes(sealed))))
        assert caught.value.reason == "bad_signature"
    text = ring(app).make(ADA)
    for position in range(len(text)):
        other = "A" if text[position] != "A" else "B"
        altered = text[:position] + other + text[position + 1 :]
        with pytest.raises(DecodeError):
            ring(app).unwrap(ADA, altered)


def test_a_process_uses_a_key_for_ten_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(subject_keys, "monotonic", lambda: now[0])
    app, _ = owned_app("sqlite:///x.db")
    keys = ring(app)
    rows: dict[str, str | None] = {ADA: keys.make(ADA)}
    asked: list[list[str]] = []

    def fetch(subjects: Any) -> dict[str, str | None]:
        asked.append(list(subjects))
        now[0] += 3.0  # A key counts from the question on, not from the answer.
        return rows

    with pytest.raises(SubjectKeyNeeded):
        keys.key(ADA)
    keys.load(ADA, fetch)
    keys.load(ADA, fetch)  # another thread has waited for the first
    assert asked == [[ADA]]
    rows[ADA] = None
    now[0] = 109.9
    assert len(keys.key(ADA)) == 32
    now[0] = 110.0
    with pytest.raises(SubjectKeyNeeded):
        keys.key(ADA)
    keys.load(ADA, fetch)
    with pytest.raises(DecodeError) as caught:
        keys.key(ADA)
    assert caught.value.reason == "subject_dropped"
    keys.load(BEA, fetch)
    with pytest.raises(DecodeError, match="not in the database"):
        keys.key(BEA)
    # And there is a bound on how many
    monkeypatch.setattr(subject_keys, "KEYS_MAX", 5)
    for n in range(20):
        keys.keep(subject_id(str(n)), b"k", 1e9)
    assert len(keys._kept) == 5


def test_what_earlier_attempts_said_goes_too(url: str) -> None:
    """The text of an error may be about the person."""
    app, _ = owned_app(url)
    with connect(url) as tx:
        app.tasks["broken"].options(subject="ada").enqueue(tx, 1)
    assert drain(app) in ({}, {"retried": 1})
    with Control(url) as control:
        control.subject_keys.drop("ada")
    later(app)
    until_s = 0
    while not (found := _letters(url)) and until_s < 60:
        drain(app, wait_s=1.0)
        until_s += 1
    (letter,) = found
    assert letter.reason == "subject_dropped"
    assert "Ada Lovelace" not in str(letter)


def test_a_rotation_of_the_ring_keeps_the_keys_of_subjects(url: str) -> None:
    app, _ = owned_app(url)
    with connect(url) as tx:
        for subject in ("ada", "bea"):
            app.tasks["mail"].options(subject=subject).enqueue(tx, 1)
    new, ran = owned_app(url, BOTH, "k2")
    with Control(url) as control:
        control.subject_keys.drop("bea")
        assert msgspec.structs.astuple(control.subject_keys.rewrap([ring(new)])) == (1, 0, 0)
        assert msgspec.structs.astuple(control.subject_keys.rewrap([ring(new)])) == (0, 1, 0)
        assert msgspec.structs.astuple(control.subject_keys.rewrap([ring(app)])) == (0, 0, 1)
    assert keys_in(url)[BEA] is None
    only, ran = owned_app(url, {"k2": BOTH["k2"]}, "k2")
    assert drain(only, wait_s=2.0) == {"done": 1, "dead": 1}
    assert ran == [1]


def test_a_database_that_is_away_costs_no_attempt(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from late.dispatcher import subject_keys as fetching

    app, ran = owned_app(url)
    with connect(url) as tx:
        for name in ("invoice", "mail"):
            app.tasks[name].options(subject="ada").enqueue(tx, 1)
    real = load
    failed: list[int] = []

    def flaky(*args: Any) -> None:
        if len(failed) < 4:
            failed.append(1)
            raise OSError("away")
        real(*args)

    monkeypatch.setattr(fetching, "load", flaky)
    monkeypatch.setattr(fetching, "AWAY_S", 0.01)
    assert drain(app, wait_s=3.0) == {"done": 2}
    assert ran == [1, 1]
    assert _letters(url) == []


def test_a_subject_needs_a_codec_with_keys() -> None:
    app = late.App("sqlite:///x.db")

    @app.task
    def plain(n: int) -> None: ...

    signed = late.App(
        "sqlite:///x.db", strict=False, codec=Signed(Encrypted(keys=OLD, current="k1"),
        keys=OLD, current="k1"),
    )  # fmt: skip
    with pytest.raises(InvalidPolicy, match="subject needs the codec"):
        plain.options(subject="ada")
    with pytest.raises(InvalidPolicy, match=r"subject needs the codec.*signed\+encrypted"):
        signed.call("other", {}, subject="ada")
    good, _ = owned_app("sqlite:///x.db")
    with pytest.raises(InvalidTask, match="enqueue it anew"):
        good.redrive(
            None, "01a218b1-b16a-7000-8000-00c46abca7e1",  # type: ignore[call-overload]
            call=good.tasks["mail"].options(subject="ada").call(1),
        )  # fmt: skip


async def test_a_drop_under_a_running_worker_ends_what_waits(url: str) -> None:
    app, ran = owned_app(url)
    task = app.tasks["invoice"]
    with connect(url) as tx:
        task.options(subject="ada").enqueue(tx, 1)
    async with working(app):
        await until(lambda: ran == [1])
        with Control(url) as control:
            await asyncio.to_thread(control.subject_keys.drop, "ada")
        row = (await asyncio.to_thread(_sealed, app, url))[0]
        later(app)
        await asyncio.to_thread(put, url, row)
        await until(lambda: len(_letters(url)) == 1)
    assert ran == [1]


def _sealed(app: late.App, url: str) -> list[Any]:
    """Rows of a producer that had read the key before the drop and commits after it."""
    call = app.tasks["invoice"].options(subject="ada").call(2)
    return app._rows.many([call], None, {ADA: b"k" * 32})


def _letters(url: str) -> list[Any]:
    with Control(url) as control:
        return list(control.dead_letters.find(Filter()))


class _postgres:
    def __enter__(self) -> str:
        self._made = made()
        return self._made.__enter__()["owner"]

    def __exit__(self, *error: Any) -> None:
        self._made.__exit__(*error)
