"""Orders, and the receipts that were sent for them."""

from django.db import models


class Order(models.Model):
    """One order. A task pays it."""

    email = models.EmailField()
    cents = models.IntegerField()
    paid = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"order {self.pk}"


class Receipt(models.Model):
    """One receipt for each run of the task that sends it: more than one would be a repeat."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE)
