"""Each role may do with the keys of subjects what it needs, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

import late
from late.control import Control
from late.outbox import connect
from late.payload.subject_keys import subject_id
from late.testing import drain
from tests.security.logins import made, open_as
from tests.security.subject_kit import BOTH, keys_in, owned_app, ring

ADA = subject_id("ada")


@pytest.fixture
def logins() -> Iterator[dict[str, str]]:
    with made() as urls:
        yield urls


def test_rights_on_the_keys(logins: dict[str, str]) -> None:
    owner = logins["owner"]
    app, _ = owned_app(owner)
    # A producer makes and reads keys
    enqueuer, _ = owned_app(logins["enqueuer"])
    with connect(logins["enqueuer"]) as tx:
        enqueuer.tasks["mail"].options(subject="ada").enqueue(tx, 1)
        enqueuer.tasks["mail"].options(subject="ada").enqueue(tx, 2)
    rejected = {
        "enqueuer": (
            "update late_subject_key set wrapped = null",
            "delete from late_subject_key",
            "insert into late_subject_key (subject, created_at_us, dropped_at_us)"
            " values ('x', 1, 1)",
        ),
        "worker": ("update late_subject_key set wrapped = 'x'", "delete from late_subject_key"),
        "viewer": (
            "select wrapped from late_subject_key",
            "select subject from late_subject_key",
            "delete from late_subject_key",
        ),
        "operator": (
            "delete from late_subject_key",
            "insert into late_subject_key (subject, created_at_us) values ('x', 1)",
            "update late_subject_key set subject = 'x'",
        ),
    }
    for role, statements in rejected.items():
        for statement in statements:
            refusal = pytest.raises(psycopg.errors.InsufficientPrivilege)
            with closing(open_as(logins[role])) as login, refusal:
                login.execute(statement)
    # A worker reads them, and its handlers enqueue for subjects
    worker, ran = owned_app(logins["worker"])
    with connect(logins["worker"]) as tx:
        worker.tasks["mail"].options(subject="bea").enqueue(tx, 3)
    assert drain(worker, wait_s=2.0) == {"done": 3}
    assert sorted(ran) == [1, 2, 3]
    # An operator drops and wraps anew; a viewer and a producer do neither
    for role in ("viewer", "enqueuer"):
        with Control(logins[role]) as control, pytest.raises(late.StoreError):
            control.subject_keys.drop("ada")
    new, _ = owned_app(owner, BOTH, "k2")
    with Control(logins["operator"]) as control:
        assert control.subject_keys.drop("ada").now
        assert control.subject_keys.rewrap([ring(new)]).wrapped == 1
    assert keys_in(owner)[ADA] is None
    assert app is not None
