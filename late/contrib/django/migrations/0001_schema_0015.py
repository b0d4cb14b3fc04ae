"""Bring the tables of `late` to schema 0015, or to the newest that the installed version knows."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models

import late.contrib.django.models
from late.contrib.django.schema import upgrade


class Migration(migrations.Migration):
    """Not undone by Django: the tables hold tasks. `late migrate --to` goes back where it can."""

    initial = True
    atomic = False
    operations: ClassVar = [
        migrations.RunPython(upgrade),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                ("task_id", late.contrib.django.models.TaskIdField(primary_key=True)),
                ("consumer_group", models.TextField()),
                ("name", models.TextField()),
                ("queue", models.TextField()),
                ("reason", models.TextField()),
                ("attempts", models.IntegerField()),
                ("dead_at_us", models.BigIntegerField()),
                ("errors", models.TextField(null=True)),
            ],
            options={
                "verbose_name": "dead letter",
                "db_table": "late_dead",
                "ordering": ["-dead_at_us"],
                "managed": False,
            },
            managers=[("objects", late.contrib.django.models.DeadLetters())],
        ),
    ]
