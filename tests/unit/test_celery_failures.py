"""Errors that are made again from the text of a dead letter."""

from __future__ import annotations

import pytest

from late.celery import SoftTimeLimitExceeded
from late.celery.exceptions import TimeLimitExceeded, TimeLimitFailure
from late.celery.failures import rebuilt
from late.errors import TaskEnded
from late.handler.classify import describe


class Inner:
    class Declined(Exception):
        """A class in another one."""

    class Odd(Exception):
        def __init__(self, *, code: int) -> None:
            super().__init__(f"code {code}")


def raised(error: BaseException) -> BaseException:
    try:
        try:
            raise LookupError("the cause <- of it [a.py:1 b]")
        except LookupError as cause:
            raise error from cause
    except BaseException as found:
        return rebuilt(describe(found))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("unlucky: [really] it is"),
        ValueError(),
        Inner.Declined("no money"),
        ConnectionError("[Errno 111] refused"),
    ],
)
def test_an_error_is_of_its_class_with_its_message(error: BaseException) -> None:
    found = raised(error)
    assert type(found) is type(error)
    assert found.args == error.args


def test_an_error_that_a_message_does_not_make_has_its_name() -> None:
    found = raised(Inner.Odd(code=3))
    assert (type(found).__name__, str(found)) == ("Odd", "code 3")
    assert isinstance(found, Exception)


@pytest.mark.parametrize(
    "text", ["os.system: true", "builtins.exec: 1", "gone.away.Error: why", "SystemExit: 1"]
)
def test_nothing_but_an_error_is_made_of_a_text(text: str) -> None:
    found = rebuilt(text)
    assert type(found).__bases__ == (Exception,)
    assert found.args == (text.partition(": ")[2],)


def test_a_time_limit_is_one_of_celery() -> None:
    assert isinstance(rebuilt(describe(TimeLimitFailure("over"))), SoftTimeLimitExceeded)
    assert isinstance(rebuilt("timed out after 3 s"), TimeLimitExceeded)
    assert isinstance(rebuilt("its worker is gone"), TaskEnded)
