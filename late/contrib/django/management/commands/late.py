"""`manage.py late ...`: the command `late` on the project's database."""

from __future__ import annotations

from late.contrib.django.management.base import LateCommand


class Command(LateCommand):
    help = "Run a command of late on the project's database: manage.py late dead list"
