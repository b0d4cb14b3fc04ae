"""Models that are only read, for Django's admin: dead letters, and tasks that wait."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec
from django.db import models

from late.contrib.django.application import setting


class TaskIdField(models.TextField):
    """A task's id: `uuid` on PostgreSQL, else text. In Python a string."""

    def db_type(self, connection: Any) -> str:
        """Return the column's type, as `late.schema.tables` has it."""
        return "uuid" if connection.vendor == "postgresql" else "text"

    def from_db_value(self, value: Any, *_: Any) -> str | None:
        """Return the id as text."""
        return None if value is None else str(value)


class DeadLetters(models.Manager):
    """The dead letters of the project's consumer group."""

    def get_queryset(self) -> Any:
        """Read them from the database that has the tasks, whatever a router says."""
        found = super().get_queryset().using(setting("DATABASE"))
        return found.filter(consumer_group=setting("GROUP"))


class DeadLetter(models.Model):
    """A task that will not run again by itself. Its payload is left out: it may be confidential."""

    task_id = TaskIdField(primary_key=True)
    consumer_group = models.TextField()
    name = models.TextField()
    queue = models.TextField()
    reason = models.TextField()
    attempts = models.IntegerField()
    dead_at_us = models.BigIntegerField()
    errors = models.TextField(null=True)

    objects = DeadLetters()

    class Meta:
        app_label = "late"
        managed = False
        db_table = "late_dead"
        ordering: ClassVar = ["-dead_at_us"]
        verbose_name = "dead letter"

    def __str__(self) -> str:
        return f"{self.name} {self.task_id}"

    @property
    def died_at(self) -> datetime:
        """The time by the database's clock."""
        return datetime.fromtimestamp(self.dead_at_us / 1e6, UTC)

    @property
    def last_error(self) -> str:
        """The error of the last attempt; empty if it has none."""
        found = msgspec.json.decode(self.errors or "[]")
        return str(found[-1]["error"]) if found else ""


class WaitingTask(models.Model):
    """A task that waits, for the admin's list and its permission; `waiting_tasks.py` reads it.
    This table holds those that are parked."""

    task_id = TaskIdField(primary_key=True)

    class Meta:
        app_label = "late"
        managed = False
        db_table = "late_timer"
        default_permissions = ("view",)
        verbose_name = "waiting task"
