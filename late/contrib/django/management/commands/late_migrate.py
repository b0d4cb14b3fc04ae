"""`manage.py late_migrate`: what `manage.py migrate late` does, and its way back."""

from __future__ import annotations

from late.contrib.django.management.base import LateCommand


class Command(LateCommand):
    help = "Bring the tables of late to this version. Options: manage.py late_migrate --help"
    first = ("migrate",)
