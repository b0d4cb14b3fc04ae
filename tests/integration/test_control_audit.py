"""What operators change leaves a row, in the same transaction."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection

from late.control import Control, audit
from late.model.ids import new_id
from late.schema.engine import make_engine, reading, write
from late.schema.migrate import upgrade


@pytest.fixture
def url(tmp_path: Path) -> str:
    place = f"sqlite:///{tmp_path}/late.db"
    upgrade(place)
    return place


def test_a_change_and_its_row_commit_together(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(audit.ACTOR_VARIABLE, "ada@desk")
    engine = make_engine(url)

    def change(connection: Connection) -> str:
        return audit.record(
            connection, action="queue.set", subject="queue:a", before=None, after={"rate": 5}
        )

    first = write(engine, change)

    def fail(connection: Connection) -> None:
        change(connection)
        raise KeyError

    with pytest.raises(KeyError):
        write(engine, fail)
    with reading(engine) as connection:
        (entry,) = audit.entries(connection)
    assert (entry.audit_id, entry.action) == (first, "queue.set")
    assert entry.actor.startswith("ada@desk (login:")
    assert (entry.before, entry.after) == (None, '{"rate":5}')


def test_the_latest_come_first_and_can_be_chosen(url: str) -> None:
    engine = make_engine(url)
    for number in range(3):
        write(engine, lambda c, n=number: audit.record(c, action="queue.set", subject=f"queue:{n}"))
    with reading(engine) as connection:
        subjects = [entry.subject for entry in audit.entries(connection)]
        assert subjects == ["queue:2", "queue:1", "queue:0"]
        assert [e.subject for e in audit.entries(connection, subject="queue:1")] == ["queue:1"]
        assert audit.entries(connection, action="queue.reset") == []


def test_what_was_asked_for_one_task_is_read_from_its_time_on(url: str) -> None:
    engine, task_id = make_engine(url), new_id(3)
    for number, subject in enumerate((task_id, new_id(3), task_id)):
        record = partial(audit.record, action=f"task.n{number}", subject=f"task:{subject}")
        write(engine, record)
    with Control(url) as control:
        found = control.audit.of_task(task_id)
        assert [entry.action for entry in found] == ["task.n0", "task.n2"]
        for _ in range(12):
            write(engine, partial(audit.record, action="task.n9", subject=f"task:{task_id}"))
        assert [entry.action for entry in control.audit.of_task(task_id)] == ["task.n9"] * 10


def test_who_acts_is_known_without_a_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(audit.ACTOR_VARIABLE, raising=False)
    assert "@" in audit.actor()
    login = audit.actor()
    monkeypatch.setenv(audit.ACTOR_VARIABLE, "ada")
    assert audit.actor() == f"ada (login:{login})", "whoever it is said to be, and who it was"
    for same in (login, login.split("@")[0]):
        monkeypatch.setenv(audit.ACTOR_VARIABLE, same)
        assert audit.actor() == same
    monkeypatch.setenv(audit.ACTOR_VARIABLE, "a" * 1_000)
    assert len(audit.actor()) == 256
    assert audit.actor().endswith(f"a (login:{login})"), "a long name does not hide it"
    with audit.acting("token:ci"):
        assert audit.actor() == "token:ci", "somebody else's request, in a process with a login"
    monkeypatch.delenv(audit.ACTOR_VARIABLE)
    monkeypatch.setattr("getpass.getuser", lambda: (_ for _ in ()).throw(KeyError("uid")))
    assert audit.actor().split("@")[0].isdigit()
