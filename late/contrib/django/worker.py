"""The target of `late worker`, `late serve` and `late check`: `late.contrib.django.worker:app`.

It sets Django up, also in child processes. The variable DJANGO_SETTINGS_MODULE names the settings.
"""

from __future__ import annotations

import django

django.setup()

from late.contrib.django import app  # noqa: E402  # It reads the settings.

__all__ = ["app"]
