"""The only page of the shop."""

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.models import Order
from shop.tasks import pay


@csrf_exempt
@require_POST
def place(request: HttpRequest) -> JsonResponse:
    """Take an order. The order and its task commit together, or neither does."""
    with transaction.atomic():
        order = Order.objects.create(email=request.POST["email"], cents=int(request.POST["cents"]))
        task_id = pay.enqueue(connection, order.pk)
        if order.cents <= 0:
            raise ValueError("an order costs something")
    return JsonResponse({"order": order.pk, "task": task_id})
