"""The entry of `INSTALLED_APPS`."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.utils.module_loading import autodiscover_modules


class LateConfig(AppConfig):
    """Loads the module `tasks` of each installed app, so that a worker knows every task."""

    name = "late.contrib.django"
    label = "late"
    verbose_name = "late"

    def ready(self) -> None:
        """Register the checks and the tasks. Django calls it once, after the models are loaded."""
        from late.contrib.django.checks import check_schema, check_settings

        checks.register(check_settings)
        checks.register(check_schema, checks.Tags.database)
        autodiscover_modules("tasks")
