"""A mixin for the test cases of Django projects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from late.contrib.django import app
from late.testing.inline_mode import Box, inline

if TYPE_CHECKING:
    from unittest import TestCase as Base
else:
    Base = object


class TasksMixin(Base):
    """Capture the tasks of each test in `self.tasks`; `self.tasks.run()` runs them in the test.

    Put it before Django's class: `class CheckoutTest(TasksMixin, TestCase)`. Nothing is written to
    the tables of `late`, and the handlers see what the test has written. A task of an atomic block
    that was rolled back stays captured.
    """

    tasks: Box

    def setUp(self) -> None:
        """Begin to capture, before the test's own `setUp` goes on."""
        super().setUp()
        self.tasks = self.enterContext(inline(app))

    def assertEnqueued(self, task: Any, **args: Any) -> None:
        """Fail if no pending call of `task` has these arguments."""
        path = getattr(task, "module_path", None)  # A task of Django's own interface has one.
        calls = [captured.args for captured in self.tasks.of(path or task)]
        if path is not None:
            calls = [call["kwargs"] for call in calls]
        found = any(args.items() <= call.items() for call in calls)
        assert found, f"no {task!r} with {args}: {calls}"
