"""The tasks of the shop. Django loads this module because its app is installed."""

from django.db import connection, transaction
from django.db.models import F
from django_tasks import task

import late
from late.contrib.django import app
from shop.models import Order


@app.task(queue="payments")
def pay(ctx: late.Context, order_id: int) -> None:
    """Pay an order. Its effects happen once, and the receipt is sent if they commit."""
    with transaction.atomic():
        if ctx.claim(connection):
            Order.objects.filter(pk=order_id).update(paid=True)
            send_receipt.enqueue(connection, order_id)


@app.task(queue="mail", retry=late.Retry(max_attempts=1))
def send_receipt(order_id: int) -> None:
    """Stand for a mail. It has one attempt: who got it need not get it again."""
    Order.objects.filter(pk=order_id).update(receipts=F("receipts") + 1)


@app.task(queue="mail", retry=late.Retry(max_attempts=1))
async def remind(order_id: int) -> None:
    """Fail for an order that is gone; async handlers use the ORM too."""
    await Order.objects.aget(pk=order_id)


@task(queue_name="reports")
def total(minimum: int) -> int:
    """Add up the orders above a minimum. A task of Django's own interface, with a result."""
    return sum(Order.objects.filter(cents__gte=minimum).values_list("cents", flat=True))
