"""From return values and exceptions to how an attempt ended."""

from __future__ import annotations

from typing import Any

import pytest

from late.errors import DatabaseReplaced, DecodeError
from late.handler.classify import DONE, ERROR_BYTES_MAX, Verdict, clean, describe, raised, returned
from late.handler.outcomes import Discard, Exhausted, Nack, Retry, Snooze


def boom() -> None:
    raise ValueError("bad amount")


def caught(fn: Any) -> BaseException:
    with pytest.raises(BaseException) as info:
        fn()
    return info.value


@pytest.mark.parametrize(
    ("signal", "verdict"),
    [
        (Retry(after_s=1.5), Verdict("failed", error="asked for a retry", after_us=1_500_000)),
        (Retry(reason="rate limit"), Verdict("failed", error="rate limit")),
        (Snooze(60), Verdict("snooze", after_us=60_000_000)),
        (Discard("obsolete"), Verdict("discard", reason="obsolete")),
        (Nack(reason="no GPU"), Verdict("not_capable", reason="no GPU")),
        (
            Nack(not_capable=False, reason="busy"),
            Verdict("failed", error="not accepted: busy", reason="busy"),
        ),
    ],
)
def test_a_signal_means_the_same_raised_and_returned(signal: Any, verdict: Verdict) -> None:
    assert returned(signal) == verdict
    assert raised(signal, Retry(give_up_on=Exception)) == verdict


@pytest.mark.parametrize(
    "last", [Discard("obsolete"), Retry(after_s=2), Snooze(60), DatabaseReplaced("moved")]
)
def test_what_is_no_failure_counts_also_where_attempts_are_exhausted(last: Exception) -> None:
    exhausted = Exhausted()
    exhausted.__cause__ = last
    assert raised(exhausted, Retry()) == raised(last, Retry())
    exhausted.__cause__ = ValueError("bad amount")
    assert raised(exhausted, Retry()) == Verdict(
        "failed", "ValueError: bad amount", "attempts_exhausted", retryable=False
    )


def test_any_other_return_value_is_done() -> None:
    assert returned(None) is DONE
    assert returned({"rows": 3}) is DONE


@pytest.mark.parametrize(
    ("rule", "retryable"),
    [
        (None, True),
        (Retry(), True),
        (Retry(retry_on=ValueError), True),
        (Retry(retry_on=OSError), False),
        (Retry(give_up_on=ValueError), False),
        (Retry(retry_on=Exception, give_up_on=(KeyError, ValueError)), False),
    ],
)
def test_the_policy_decides_which_errors_are_repeated(rule: Retry | None, retryable: bool) -> None:
    verdict = raised(caught(boom), rule)
    assert (verdict.kind, verdict.retryable) == ("failed", retryable)


def test_an_exit_is_repeated_although_policies_list_exceptions() -> None:
    assert raised(SystemExit(1), Retry(retry_on=Exception)).retryable


def test_an_undecodable_payload_is_dead_with_its_reason() -> None:
    verdict = raised(DecodeError("1.2 MiB", reason="payload_too_large"), None)
    assert (verdict.kind, verdict.reason) == ("dead", "payload_too_large")


def test_the_text_names_type_message_and_place() -> None:
    text = describe(caught(boom))
    assert text.startswith("ValueError: bad amount [test_dispatcher_classify.py:")
    innermost, caller = text.removesuffix("]").split(", ")
    assert innermost.endswith(" boom")
    assert caller.endswith(" caught")


def test_of_many_places_those_of_the_service_are_told() -> None:
    """A driver has the same innermost frames for all errors: they say nothing of the task."""
    library: dict[str, Any] = {"boom": boom}
    source = "def call(n):\n    return call(n - 1) if n else boom()"
    exec(compile(source, "/venv/lib/python3.11/site-packages/driver/cursor.py", "exec"), library)

    def save() -> None:
        library["call"](9)

    places = describe(caught(save)).partition("[")[2].removesuffix("]").split(", ")
    names = [place.rpartition(" ")[2] for place in places]
    assert names == ["boom", "call", "call", "call", "...", "save", "caught"]
    assert places[1] == "cursor.py:2 call"


def test_causes_and_groups_are_told() -> None:
    def chained() -> None:
        try:
            boom()
        except ValueError as error:
            raise ExceptionGroup("two", [KeyError("a"), OSError("disk")]) from error

    text = describe(caught(chained))
    assert "ExceptionGroup: two" in text
    assert "(KeyError: 'a')" in text
    assert "(OSError: disk)" in text
    assert "<- ValueError: bad amount" in text


def test_a_huge_message_is_cut_to_four_kibibytes() -> None:
    text = describe(ValueError("é" * 10_000_000))
    assert 1000 < len(text.encode()) <= ERROR_BYTES_MAX
    assert len(clean("é" * 10_000).encode()) <= ERROR_BYTES_MAX


def test_a_long_chain_is_cut_as_a_whole() -> None:
    first = ValueError("x" * 5000)
    second = ValueError("y" * 5000)
    second.__cause__ = first
    third = ValueError("z" * 5000)
    third.__cause__ = second
    assert len(describe(third).encode()) <= ERROR_BYTES_MAX


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("a\nERROR forged", "a\\nERROR forged"),
        ("\x1b[31mred\x00", "\\x1b[31mred\\x00"),
        ("a\u2028b\u202ec", "a\\u2028b\\u202ec"),
        ("lone \udce9", "lone \\udce9"),
        ("naïve ✓", "naïve ✓"),
    ],
)
def test_control_characters_are_escaped(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_secrets_are_scrubbed() -> None:
    text = describe(OSError("cannot reach postgresql://app:hunter2@db:5432/x"))
    assert "hunter2" not in text
    assert "postgresql://app:***@db:5432/x" in text
    assert clean("token=abc", lambda text: text.replace("abc", "***")) == "token=***"


def test_a_broken_scrub_hook_hides_the_text() -> None:
    def broken(text: str) -> str:
        raise RuntimeError

    assert "secret" not in clean("secret", broken)


def test_an_exception_that_cannot_be_printed_is_still_described() -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert "its message cannot be read" in describe(Unprintable())
