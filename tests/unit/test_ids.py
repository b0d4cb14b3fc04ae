"""Task ids: unique, in the order of their making, and they name their shard."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from late.errors import InvalidName
from late.model.ids import IdFactory, made_at_us, new_id, shard_of


@settings(deadline=None)  # machines under load are not what is tested
@given(shard=st.integers(0, 4095))
def test_an_id_is_a_uuid_of_version_7_that_names_its_shard(shard: int) -> None:
    made = new_id(shard)
    assert uuid.UUID(made).version == 7
    assert uuid.UUID(made).variant == uuid.RFC_4122
    assert str(uuid.UUID(made)) == made
    assert shard_of(made) == shard


def test_ids_of_a_shard_sort_in_the_order_of_their_making() -> None:
    made = [new_id(7) for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_ids_of_a_batch_are_as_if_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("late.model.ids.time.time_ns", lambda: 5_000_000)
    factory = IdFactory()
    before = factory.make(7)
    shards = [7, 3, 4095] * 500
    made = factory.many(shards)
    after = factory.make(7)
    assert [shard_of(one) for one in made] == shards
    assert all(uuid.UUID(one).version == 7 and str(uuid.UUID(one)) == one for one in made)
    assert len({one[-10:] for one in made}) == len(made), "each has noise of its own"
    of_one = [before, *[one for one in made if shard_of(one) == 7], after]
    assert of_one == sorted(set(of_one))
    assert factory.many([]) == []


def test_a_batch_that_does_not_fit_into_a_millisecond_goes_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("late.model.ids.time.time_ns", lambda: 5_000_000)
    factory = IdFactory()
    first = factory.make(0)
    factory._counter = 2**22 - 2
    made = [first, *factory.many([0, 0]), factory.make(0)]
    assert made == sorted(set(made))
    assert [made_at_us(one) for one in made] == [5_000, 6_000, 6_000, 6_000]


def test_a_clock_that_goes_back_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([2_000_000_000, 1_000_000_000, 1_000_000_000])
    monkeypatch.setattr("late.model.ids.time.time_ns", lambda: next(times))
    make = IdFactory().make
    made = [make(0) for _ in range(3)]
    assert made == sorted(made)
    assert [made_at_us(one) for one in made] == [2_000_000] * 3


def test_threads_share_a_factory() -> None:
    made: list[str] = []

    def work() -> None:
        made.extend([new_id(1) for _ in range(2_000)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8_000


def test_forked_processes_make_different_ids() -> None:
    # In an interpreter of its own: a fork of this one crashes where gRPC's threads run in it.
    program = (
        "import os\n"
        "from late.model.ids import new_id\n"
        "new_id(0)\n"
        "child = os.fork()\n"
        "os.write(1, ''.join(new_id(0) + '\\n' for _ in range(100)).encode())\n"
        "child and os.waitpid(child, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    made = done.stdout.split()
    assert len(made) == 200
    assert len({one[-10:] for one in made}) == 200


def test_made_at_is_about_now() -> None:
    before = time.time_ns() // 1_000_000 * 1000
    made = new_id(0)
    # A factory that had to count beyond a millisecond may be a little ahead.
    assert before <= made_at_us(made) <= time.time_ns() // 1000 + 1_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "x",
        str(uuid.UUID(int=0)),
        str(uuid.UUID(int=2**128 - 1)),
        "01A1FC01-E1DB-7001-8000-009DFAAB9E5A",
        "01a1fc01-e1db-7001-8000-017a6470f36a\n",
    ],
)
def test_what_is_no_id_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidName):
        shard_of(wrong)
