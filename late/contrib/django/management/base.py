"""Hand a command of `manage.py` over to the command `late`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from late.contrib.django.application import setting
from late.contrib.django.connections import database_url

TARGET = "late.contrib.django.worker:app"
"""The `MODULE:APP` of commands that need the project's tasks."""


class LateCommand(BaseCommand):
    """Runs `late` on the project's database with the arguments that follow.

    `first` is put in front of them. Options of `late` are its own (`--help` as well), so Django
    does not read them, but for `--settings` and `--pythonpath`, which it has read by then.
    """

    first: tuple[str, ...] = ()
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """See the class. It ends the process with the exit code of `late`."""
        parser = CommandParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        self._run(parser.parse_known_args(argv[2:])[1])

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the arguments of `late` from `call_command("late", "status", "--json")`."""
        parser.add_argument("arguments", nargs="*")
        parser.parse_args = lambda args=(), _=None: parser.parse_known_args(args)[0]

    def handle(self, *_: Any, arguments: Sequence[str], **__: Any) -> None:
        """See the class."""
        self._run(arguments)

    def _run(self, arguments: Sequence[str]) -> None:
        from late.cli import main

        os.environ.setdefault("LATE_URL", database_url(setting("DATABASE")))
        # The parent of several workers starts each with the command line that it has itself.
        sys.argv = ["late", *self.first, *arguments]
        main(sys.argv[1:])
