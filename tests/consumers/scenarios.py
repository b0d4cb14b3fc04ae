"""The ten things that a consumer must do, each as a scenario on a queue of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

from tests.consumers.names import SCENARIOS
from tests.consumers.program import Program
from tests.consumers.stage import Stage, demand

MANY = 20
AGAIN_S = 5.0
CLOCK_S = 3.0
"""A server counts from a lower bound of the database's clock, which is behind by the time that the
last heartbeat took. A consumer's part, `after_s`, is compared exactly."""
LONG_S, LONG_VISIBILITY_S = 24.0, 16.0
HOUR_S = 3_600.0
REASON = "no such card: “4711” ☂"
VALUES: dict[str, Any] = {
    "text": 'naïve Ω שלום 漢字 😀 e\u0301 \u2028 \u0001 "quoted" back\\slash\n\ttab </script>',
    "schlüssel 🔑": "",
    "integers": [0, -1, 2**31, 2**53 - 1, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)],
    "fractions": [0.1, -2.5e-7, 1.5e300, 5e-324],
    "words": [True, False, None],
    "empty": {"list": [], "object": {}, "text": ""},
    "nested": {"a": [{"b": [[[{"c": {"d": [1, [2, [3, {"e": None}]]]}}]]]}]},
}


async def once(stage: Stage) -> None:
    """Every task is done once, whoever of two consumers has it."""
    tasks = [await stage.put("work", number=number) for number in range(MANY)]
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(stage.consumer(name)) for name in ("one", "two")]
        await stage.until_settled(tasks, *both)
        began = sorted(attempt for each in both for attempt in each.began)
        ended = sorted(attempt for each in both for attempt in each.ended)
    once_each = sorted((task, 1) for task in tasks)
    demand(began == once_each, f"of {MANY} tasks, these attempts began: {began}")
    demand(ended == once_each, f"of {MANY} tasks, these attempts ended: {ended}")


async def values(stage: Stage) -> None:
    """Arguments come as they were put, and a result goes back as it is."""
    task = await stage.put("echo", **VALUES)
    async with stage.consumer("one") as program:
        await stage.until_settled([task], program)
    found = (await stage.server.result(task))["value"]
    demand(isinstance(found, dict), f"the result of `echo` is its arguments, and not {found!r}")
    for key, value in VALUES.items():
        demand(
            key in found and same(found[key], value),
            f"{key!r} was put as {value!r} and came back as {found.get(key)!r}",
        )
    demand(len(found) == len(VALUES), f"these came back: {list(found)}")


async def retry(stage: Stage) -> None:
    """A retry with a delay is another attempt, and not before its time."""
    task = await stage.put("flaky", until_attempt=3, after_s=AGAIN_S)
    async with stage.consumer("one") as program:
        await stage.until_settled([task], program)
        attempts, wire = program.attempts(task), program.proxy
        await stage.stopped(program)
    demand(attempts == [1, 2, 3], f"attempts 1, 2 and 3 were due, and {attempts} began")
    nacks = [each for each in wire.answers_to(task) if each.word == "nack"]
    # A consumer that waits long for the server's word says the same once more: the first counts.
    first = {each.body["receipt"]: each for each in reversed(nacks)}
    for given, later in pairwise(wire.tasks()):
        if (each := first.get(given["receipt"])) is None:
            continue
        outcome, after_s = each.body.get("outcome", "retry"), each.body.get("after_s")
        demand(outcome == "retry", f"the outcome of a failed attempt is `retry`, not `{outcome}`")
        demand(after_s == AGAIN_S, f"after_s was {AGAIN_S} and was sent as {after_s}")
        pause_s = later["given_at"] - each.at
        demand(
            pause_s >= AGAIN_S - CLOCK_S,
            f"the next attempt came after {pause_s:.2f} s and not after {AGAIN_S:g} s",
        )


async def dead_letter(stage: Stage) -> None:
    """A task that fails for good becomes a dead letter with its message, at once."""
    task = await stage.put("broken", reason=REASON)
    async with stage.consumer("one") as program:

        async def is_dead() -> bool:
            return (await stage.server.state(task))["state"] in ("dead", "settled", "unknown")

        await stage.until("the task was a dead letter", is_dead, program)
        letters = await stage.server.dead(stage.queue)
        attempts = program.attempts(task)
    demand(
        [letter["task_id"] for letter in letters] == [task],
        f"one dead letter was due, and there are {len(letters)}",
    )
    demand(attempts == [1], f"one attempt was due, and {attempts} began")
    errors = [error["error"] for error in letters[0]["errors"]]
    demand(
        any(REASON in error for error in errors),
        f"the message {REASON!r} was due, and these are kept: {errors}",
    )


async def long(stage: Stage) -> None:
    """A task that takes longer than its visibility stays with who has it."""
    task = await stage.put("work", seconds=LONG_S)
    async with stage.consumer("one", visibility_s=LONG_VISIBILITY_S) as program:
        await stage.until_settled([task], program)
        attempts, wire = program.attempts(task), program.proxy
    demand(
        attempts == [1],
        f"it works for {LONG_S:g} s with a visibility of {LONG_VISIBILITY_S:g} s: one attempt "
        f"was due, and {attempts} began, with {len(wire.of('extend'))} requests for more time",
    )


async def not_capable(stage: Stage) -> None:
    """A task that this consumer cannot do goes to one that can, at no cost."""
    other = await stage.put("somebody.else")
    async with stage.consumer("one") as program:
        wire = program.proxy

        def has_answered() -> bool:
            # One that asks by names is given no other task.
            asks_on = len(wire.of("receive")) > 1 and not wire.tasks()
            return asks_on or bool(wire.answers_to(other))

        await stage.until("it answered `not_capable`", has_answered, program)
        said = [each.body.get("outcome", each.word) for each in wire.answers_to(other)]
        demand(
            all(word == "not_capable" for word in said),
            f"it answered {said} to a task whose name it does not know",
        )
        found: list[dict[str, Any]] = []

        async def is_here() -> bool:
            names = ["somebody.else"]
            found.extend(
                await stage.server.receive(stage.queue, consumer="other", wait_s=2, names=names)
            )
            return bool(found)

        await stage.until("another consumer had the task", is_here, program)
        demand(found[0]["attempt"] == 1, "it cost the task an attempt")
        await stage.server.ask("POST", "/ack", {"receipt": found[0]["receipt"]})
        own = await stage.put("work")
        await stage.until_settled([other, own], program)


async def kill(stage: Stage) -> None:
    """A consumer that is killed in the middle of a task loses nothing."""
    task = await stage.put("work", seconds=HOUR_S)
    async with stage.consumer("one", visibility_s=5) as program:
        await stage.until_began(task, program)
        await program.kill()
        answered = program.proxy.answers_to(task)
    demand(not answered, "it answered before the work was done")
    async with stage.consumer("two") as program:
        await stage.until_settled([task], program)
        attempts = program.attempts(task)
    demand(attempts == [2], f"attempt 2 was due, and {attempts} began")


async def stop_short(stage: Stage) -> None:
    """A consumer that stops finishes its task, or gives it back, and keeps nothing."""
    task = await stage.put("work", seconds=2)
    async with stage.consumer("one", visibility_s=HOUR_S) as program:
        await stage.until_began(task, program)
        await stage.stopped(program)
        left = program.proxy.unanswered()
    demand(not left, "it ended and kept a task to itself for the rest of its visibility")
    async with stage.consumer("two") as program:
        await stage.until_settled([task], program)


async def stop_long(stage: Stage) -> None:
    """A consumer that stops and cannot finish in time gives the task back to others."""
    task = await stage.put("work", seconds=HOUR_S)
    async with stage.consumer("one", visibility_s=HOUR_S, grace_s=1) as program:
        await stage.until_began(task, program)
        await stage.stopped(program)
        left, answers = program.proxy.unanswered(), program.proxy.answers_to(task)
    demand(not left, "it ended and kept a task to itself for the rest of its visibility")
    outcomes = [each.body.get("outcome", "retry") for each in answers if each.word == "nack"]
    demand(
        bool(outcomes) and len(outcomes) == len(answers) and outcomes[-1] in ("snooze", "retry"),
        f"it has to give back what it did not finish, and answered {outcomes or 'ack'}",
    )
    async with stage.consumer("two") as program:
        await stage.until(
            "another consumer began the task",
            _any_of(stage, task, program),
            program,
        )


def _any_of(stage: Stage, task: str, program: Program) -> Callable[[], Awaitable[bool]]:
    """Return whether the task began again or, as its second attempt, is done already."""

    async def holds() -> bool:
        return bool(program.attempts(task)) or await stage.server.is_settled(task)

    return holds


async def lost_answers(stage: Stage) -> None:
    """A request that is lost on its way is sent again, and a busy server is asked again."""
    tasks = [await stage.put("work", number=number) for number in range(3)]
    async with stage.consumer("one", visibility_s=25) as program:
        wire = program.proxy
        wire.lose("receive", "busy", "request")
        wire.lose("ack", "request", "answer", "busy")
        await stage.until_settled(tasks, program)
        after = await stage.put("work")
        await stage.until_settled([after], program)
        began = sorted(program.began)
    lost = {each.body.get("receipt") for each in wire.of("ack") if each.loss is not None}
    sent = [each.body.get("receipt") for each in wire.of("ack")]
    demand(
        all(sent.count(receipt) > 1 for receipt in lost),
        "an ack without an answer was not sent again",
    )
    due = sorted((task, 1) for task in [*tasks, after])
    demand(began == due, f"each of {len(due)} tasks was to begin once, and these began: {began}")


def same(one: Any, other: Any) -> bool:
    """Tell whether two values of JSON are equal, integers and fractions told apart."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


ALL: dict[str, Callable[[Stage], Awaitable[None]]] = dict(
    zip(
        SCENARIOS,
        (
            once, values, retry, dead_letter, long, not_capable, kill, stop_short, stop_long,
            lost_answers,
        ),
        strict=True,
    )
)  # fmt: skip
