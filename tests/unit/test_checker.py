"""The checker on hand-made histories: one per class that it must find, and valid ones of any kind
in which it must find nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.checker import Truth, Verdict, check
from tests.support.history import Event, Recorder, read

SECOND = 1_000_000_000


class Story:
    """Writes a history by hand, a second per event unless told otherwise."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(
        self, f: Any, type: Any = "ok", *, p: str = "w1", t: int | None = None, **more: Any
    ) -> None:
        at = len(self.events) * SECOND if t is None else t
        self.events.append(Event(at, p, f, type, **more))

    def enqueue(self, *tasks: str, tx: str = "x", commit: Any = "ok", at_us: int = 0) -> None:
        for task in tasks:
            self.add("enqueue", p="producer", task=task, tx=tx, at_us=at_us)
        if commit is not None:
            self.add("commit", "invoke", p="producer", tx=tx)
            self.add("commit", commit, p="producer", tx=tx)

    def start(self, task: str, *, p: str = "w1", **more: Any) -> None:
        self.add("exec_start", p=p, task=task, **{"shard": 0, "epoch": 1, "attempt": 1} | more)

    def end(self, task: str, word: str = "done", *, p: str = "w1", **more: Any) -> None:
        self.add("exec_end", p=p, task=task, word=word, **{"attempt": 1} | more)

    def run(self, task: str, word: str = "done", **more: Any) -> None:
        self.start(task, **more)
        self.end(task, word, p=more.get("p", "w1"), attempt=more.get("attempt", 1))

    def check(self, **truth: Any) -> Verdict:
        return check(self.events, Truth(**truth))


def classes(verdict: Verdict) -> set[str]:
    return {name for name in verdict.__struct_fields__ if getattr(verdict, name)}


def test_a_clean_run_has_nothing_in_any_class() -> None:
    story = Story()
    story.enqueue("a", "b")
    story.enqueue("c", tx="y", commit="fail")
    story.run("a")
    story.run("b", "failed")
    story.run("b", attempt=2)
    verdict = story.check(
        ended={"default": 2}, journal=[("default", 0, 1, 1), ("default", 0, 2, 1)]
    )
    assert classes(verdict) == set()
    assert verdict.broken == {}


def test_lost_is_what_was_committed_and_never_ended() -> None:
    story = Story()
    story.enqueue("a", "b", "c", "d", "e")
    story.run("a")
    story.start("b")
    verdict = story.check(dead=[("default", "c")], expired={("default", "d")})
    assert [(f.what, f.why) for f in verdict.lost] == [
        ("default/b", "started 1 times, never ended"),
        ("default/e", "started 0 times, never ended"),
    ]
    assert set(verdict.broken) == {"lost"}


def test_lost_in_one_group_is_lost_although_another_has_run_it() -> None:
    story = Story()
    story.enqueue("a")
    story.run("a")
    verdict = check(story.events, Truth(), groups=["default", "audit"])
    assert [f.what for f in verdict.lost] == ["audit/a"]


def test_what_still_waits_is_not_lost() -> None:
    story = Story()
    story.enqueue("a")
    assert classes(story.check(waiting={("default", "a")})) == set()


@pytest.mark.parametrize("commit", ["fail", "info", None])
def test_a_phantom_ran_although_its_transaction_was_not_committed(commit: str | None) -> None:
    story = Story()
    story.enqueue("a", commit=commit)
    story.run("a")
    verdict = story.check()
    assert [f.what for f in verdict.phantom] == ["default/a"]
    assert classes(verdict) == {"phantom"}


def test_recovered_was_committed_without_an_answer_and_ran() -> None:
    story = Story()
    story.enqueue("a", "b", commit="info")
    story.run("a")
    verdict = story.check(committed={"x"})
    assert [f.what for f in verdict.recovered] == ["default/a"]
    assert [f.what for f in verdict.lost] == ["default/b"]


def test_unexpected_was_never_enqueued() -> None:
    story = Story()
    story.run("a")
    assert classes(story.check()) == {"unexpected"}


def test_a_repeat_that_nothing_explains_is_named() -> None:
    story = Story()
    story.enqueue("a")
    story.run("a")
    story.run("a")
    verdict = story.check()
    assert classes(verdict) == {"duplicated", "unexplained"}
    assert set(verdict.broken) == {"unexplained"}


def repeated_after_a_death(ended_s: int) -> Verdict:
    """One task that ended so long before its worker was killed, and started again elsewhere."""
    story = Story()
    story.enqueue("a")
    story.run("a")
    died = story.events[-1].t + ended_s * SECOND
    story.add("fault", p="storm", word="kill", target="w1", t=died)
    story.add("lease", p="w2", shard=0, epoch=2, t=died + SECOND)
    story.start("a", p="w2", epoch=2, t=died + 2 * SECOND)
    story.end("a", p="w2", t=died + 3 * SECOND)
    return check(story.events, Truth(), recorded_s=5.0)


def test_what_ended_long_before_its_worker_died_is_not_repeated() -> None:
    assert classes(repeated_after_a_death(4)) == {"duplicated"}
    late = repeated_after_a_death(6)
    assert [f.why for f in late.unrecorded] == ["ended 6.0 s before w1 died"]
    assert set(late.broken) == {"unrecorded"}


def test_a_worker_that_had_lost_its_shard_before_it_died_could_record_nothing() -> None:
    story = Story()
    story.enqueue("a")
    story.run("a")
    story.add("lease", p="w2", shard=0, epoch=2)
    story.run("a", p="w2", epoch=2)
    story.add("fault", p="storm", word="kill", target="w1")
    assert classes(check(story.events, Truth(), recorded_s=0.5)) == {"duplicated"}


@pytest.mark.parametrize("word", ["kill", "stop"])
def test_a_repeat_after_the_workers_death_is_explained(word: str) -> None:
    story = Story()
    story.enqueue("a")
    story.run("a")
    story.add("fault", p="test", word=word, target="w1")
    story.run("a", p="w2", epoch=2)
    verdict = story.check()
    assert [f.why for f in verdict.duplicated] == [f"{word} of w1"]
    assert verdict.broken == {}


def test_the_death_of_another_worker_explains_nothing() -> None:
    story = Story()
    story.enqueue("a")
    story.run("a")
    story.add("fault", p="test", word="kill", target="w9")
    story.run("a")
    assert set(story.check().broken) == {"unexplained"}


def test_a_repeat_after_a_take_over_is_explained() -> None:
    story = Story()
    story.enqueue("a")
    story.run("a")
    story.add("lease", p="w2", shard=0, epoch=2, word="acquire")
    story.run("a", p="w2", epoch=2)
    assert story.check().broken == {}


def test_double_settled_is_more_ends_than_tasks() -> None:
    story = Story()
    story.enqueue("a")
    story.run("a")
    assert classes(story.check(ended={"default": 2})) == {"double_settled"}


def test_double_settled_is_a_second_dead_letter() -> None:
    story = Story()
    story.enqueue("a")
    verdict = story.check(dead=[("default", "a"), ("default", "a")])
    assert classes(verdict) == {"double_settled"}


def test_a_zombie_is_seen_in_the_history() -> None:
    story = Story()
    story.add("lease", p="w2", shard=0, epoch=2, word="acquire")
    story.add("settle", "invoke", shard=0, epoch=1)
    story.add("settle", "ok", shard=0, epoch=1)
    assert classes(story.check()) == {"zombie"}


def test_a_settlement_that_was_sent_before_the_take_over_may_stand() -> None:
    story = Story()
    story.add("settle", "invoke", shard=0, epoch=1)
    story.add("lease", p="w2", shard=0, epoch=2, word="acquire")
    story.add("settle", "ok", shard=0, epoch=1)
    assert classes(story.check()) == set()


def test_a_settlement_that_was_sent_again_counts_from_the_first_time() -> None:
    story = Story()
    story.add("settle", "invoke", shard=0, epoch=1)
    story.add("settle", "info", shard=0, epoch=1)
    story.add("lease", p="w2", shard=0, epoch=2, word="acquire")
    story.add("settle", "invoke", shard=0, epoch=1)
    story.add("settle", "ok", shard=0, epoch=1)
    assert classes(story.check()) == set()
    # But the next one is new.
    story.add("settle", "invoke", shard=0, epoch=1)
    story.add("settle", "ok", shard=0, epoch=1)
    assert classes(story.check()) == {"zombie"}


def test_a_zombie_is_seen_in_the_journal() -> None:
    journal = [("default", 0, 1, 1), ("default", 0, 2, 3), ("default", 0, 3, 2)]
    verdict = check([], Truth(journal=journal))
    assert [(f.what, f.why) for f in verdict.zombie] == [
        ("default/#0", "seq 3 is of epoch 2, 2 of 3")
    ]
    assert classes(check([], Truth(journal=[("default", 0, 1, 2), ("default", 1, 2, 1)]))) == set()


def test_early_is_a_start_before_the_due_time_by_the_databases_clock() -> None:
    story = Story()
    story.enqueue("a", "b", at_us=1_000)
    story.run("a", at_us=999)
    story.run("b", at_us=1_000)
    verdict = story.check()
    assert [(f.what, f.why) for f in verdict.early] == [("default/a", "1 us too early")]
    assert classes(verdict) == {"early"}


def test_two_executions_at_once_under_one_epoch_overlap() -> None:
    story = Story()
    story.enqueue("a")
    story.start("a")
    story.start("a", p="w2")
    story.end("a")
    story.end("a", p="w2")
    assert [f.what for f in story.check().overlap] == ["default/a"]


def test_two_executions_at_once_under_two_epochs_do_not() -> None:
    story = Story()
    story.enqueue("a")
    story.start("a")
    story.start("a", p="w2", epoch=2)
    story.end("a")
    story.end("a", p="w2")
    verdict = story.check()
    assert classes(verdict) == {"duplicated"}


def test_an_execution_that_died_with_its_worker_overlaps_with_nothing() -> None:
    story = Story()
    story.enqueue("a")
    story.start("a")
    story.add("fault", p="test", word="kill", target="w1")
    story.run("a", p="w2")
    assert classes(story.check()) == {"duplicated"}


def depths(story: Story, *counts: int) -> None:
    for at, n in enumerate(counts):
        story.add("depth", p="test", shard=0, n=n, t=at * 10 * SECOND)


def test_stuck_is_a_shard_with_waiting_tasks_on_which_nothing_moves() -> None:
    story = Story()
    depths(story, 5, 5, 5)
    verdict = story.check()
    assert [(f.what, f.why) for f in verdict.stuck] == [
        ("default/#0", "5 wait, nothing moved for 20.0 s")
    ]


@pytest.mark.parametrize("moving", ["settle", "exec_start", "fault"])
def test_a_shard_that_moves_or_is_disturbed_is_not_stuck(moving: Any) -> None:
    story = Story()
    depths(story, 5, 5, 5)
    story.add(moving, shard=0, t=11 * SECOND)
    assert story.check().stuck == []


def test_an_empty_shard_is_not_stuck() -> None:
    story = Story()
    depths(story, 5, 0, 5, 5)
    assert story.check().stuck == []


@st.composite
def valid(draw: st.DrawFn) -> tuple[list[Event], Truth]:
    """A history as a correct queue may leave it: retries, deaths, take-overs, unknown commits."""
    events: list[Event] = []
    clock = count(1)
    committed, waiting, ended = set(), set(), 0

    def add(p: str, f: Any, type: Any = "ok", **more: Any) -> None:
        events.append(Event(next(clock), p, f, type, **more))

    for number in range(draw(st.integers(0, 8))):
        task, tx, epoch, attempt = f"t{number}", f"x{number}", 1, 1
        answer = draw(st.sampled_from(["ok", "fail", "info+", "info-"]))
        add("producer", "enqueue", task=task, tx=tx, at_us=events[-1].t if events else 0)
        add("producer", "commit", "invoke", tx=tx)
        add("producer", "commit", answer.rstrip("+-"), tx=tx)
        if answer in ("fail", "info-"):
            continue
        committed.add(tx)
        for word in draw(st.lists(st.sampled_from(["failed", "kill", "taken"]), max_size=4)):
            place: dict[str, Any] = {"task": task, "shard": 0, "epoch": epoch, "attempt": attempt}
            add(f"w{epoch}", "exec_start", at_us=10**6, **place)
            if word == "failed":
                add(f"w{epoch}", "exec_end", task=task, attempt=attempt, word="failed")
                attempt += 1
                continue
            if word == "kill":
                add("test", "fault", word="kill", target=f"w{epoch}")
            epoch += 1
            add(f"w{epoch}", "lease", shard=0, epoch=epoch, word="acquire")
        if draw(st.booleans()):
            add(
                f"w{epoch}",
                "exec_start",
                task=task,
                shard=0,
                epoch=epoch,
                attempt=attempt,
                at_us=10**6,
            )
            add(f"w{epoch}", "exec_end", task=task, attempt=attempt, word="done")
            ended += 1
        else:
            waiting.add(("default", task))
    return events, Truth(committed=committed, waiting=waiting, ended={"default": ended})


@given(valid())
def test_a_valid_history_passes_whatever_happened_in_it(story: tuple[list[Event], Truth]) -> None:
    events, truth = story
    assert check(events, truth).broken == {}


def _write(folder: str, gate: Any) -> None:
    recorder = Recorder(folder)
    recorder.write("enqueue", task="b", tx="y")
    gate.set()
    signal.pause()


def test_what_was_written_outlives_a_sigkill(tmp_path: Path) -> None:
    Recorder(tmp_path).write("enqueue", task="a", tx="x", at_us=7)
    context = multiprocessing.get_context("spawn")
    gate = context.Event()
    process = context.Process(target=_write, args=(str(tmp_path), gate))
    process.start()
    assert gate.wait(120)
    process.kill()
    process.join()
    with (tmp_path / f"{process.pid}.jsonl").open("ab") as file:
        file.write(b'{"t": 1, "p"')  # killed within the write
    first, second = read(tmp_path)
    assert (first.task, first.at_us, first.p) == ("a", 7, str(os.getpid()))
    assert (second.task, second.p) == ("b", str(process.pid))
