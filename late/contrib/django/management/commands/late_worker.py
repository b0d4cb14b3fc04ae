"""`manage.py late_worker`: run the project's tasks."""

from __future__ import annotations

from late.contrib.django.management.base import TARGET, LateCommand


class Command(LateCommand):
    help = "Run tasks until SIGTERM or SIGINT. Options: manage.py late_worker --help"
    first = ("worker", TARGET)
