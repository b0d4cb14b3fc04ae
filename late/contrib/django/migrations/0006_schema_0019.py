"""Bring the tables of `late` to schema 0019, or to the newest that the installed version knows."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from late.contrib.django.schema import upgrade


class Migration(migrations.Migration):
    """Not undone by Django: the tables hold tasks. `late migrate --to` goes back where it can."""

    atomic = False
    dependencies: ClassVar = [("late", "0005_schema_0018")]
    operations: ClassVar = [migrations.RunPython(upgrade)]
