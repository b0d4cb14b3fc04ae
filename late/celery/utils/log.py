"""`celery.utils.log`: loggers of tasks, which are those of Python here."""

from __future__ import annotations

import logging


def get_task_logger(name: str) -> logging.Logger:
    """Return the logger of this name. Level and handlers are what your logging says."""
    return logging.getLogger(name)


get_logger = get_task_logger
