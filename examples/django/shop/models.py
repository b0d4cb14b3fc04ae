"""Orders, paid by a task."""

from django.db import models


class Order(models.Model):
    """One order. A task pays it."""

    email = models.EmailField()
    cents = models.IntegerField()
    paid = models.BooleanField(default=False)
    receipts = models.IntegerField(default=0)
    """How often the task that sends the receipt has run: a repeat after a death counts too."""

    def __str__(self) -> str:
        return f"order {self.pk}"
