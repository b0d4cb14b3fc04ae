"""`manage.py late_status`: queues, shards and workers."""

from __future__ import annotations

from late.contrib.django.management.base import LateCommand


class Command(LateCommand):
    help = "Show queues, shards, owners and workers. Options: manage.py late_status --help"
    first = ("status",)
