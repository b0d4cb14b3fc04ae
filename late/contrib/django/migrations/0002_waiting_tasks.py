"""Add the model of tasks that wait, for the admin. It changes no table."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

import late.contrib.django.models


class Migration(migrations.Migration):
    """The model reads a table of `late`, which the migrations of the schema make."""

    dependencies: ClassVar = [("late", "0001_schema_0015")]
    operations: ClassVar = [
        migrations.CreateModel(
            name="WaitingTask",
            fields=[("task_id", late.contrib.django.models.TaskIdField(primary_key=True))],
            options={
                "verbose_name": "waiting task",
                "db_table": "late_timer",
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
