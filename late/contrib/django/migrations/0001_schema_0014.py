"""Bring the tables of `late` to schema 0014, or to the newest that the installed version knows."""

from __future__ import annotations

from django.db import migrations

from late.contrib.django.schema import upgrade


class Migration(migrations.Migration):
    """Not undone by Django: the tables hold tasks. `late migrate --to` goes back where it can."""

    atomic = False
    operations = [migrations.RunPython(upgrade)]
