"""How a project tests its tasks: `python manage.py test`."""

from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from late.contrib.django import app
from late.contrib.django.models import DeadLetter
from late.contrib.django.test_case import TasksMixin
from late.testing import drain
from shop.models import Order
from shop.tasks import pay, total


class CheckoutTest(TasksMixin, TestCase):
    def test_an_order_is_paid_and_gets_a_receipt(self) -> None:
        answer = self.client.post("/orders", {"email": "ada@example.org", "cents": "350"})
        order = Order.objects.get(pk=answer.json()["order"])
        self.assertEnqueued(pay, order_id=order.pk)
        self.tasks.run()
        order.refresh_from_db()
        self.assertEqual((order.paid, order.receipts), (True, 1))

    def test_the_assertion_sees_a_task_that_is_missing(self) -> None:
        with self.assertRaisesMessage(AssertionError, "pay"):
            self.assertEnqueued(pay, order_id=7)

    def test_a_task_of_djangos_interface_runs_too(self) -> None:
        Order.objects.create(email="ada@example.org", cents=350)
        result = total.enqueue(minimum=100)
        self.assertEnqueued(total, minimum=100)
        self.tasks.run()
        with self.assertRaisesMessage(Exception, "captured in this test"):
            result.refresh()
        self.assertEqual([each.name for each in self.tasks.done], ["shop.tasks.total"])


class TransactionTest(TransactionTestCase):
    def test_a_rolled_back_order_leaves_no_task(self) -> None:
        before = _tasks()
        with self.assertRaises(ValueError):
            self.client.post("/orders", {"email": "ada@example.org", "cents": "0"})
        self.assertEqual((_tasks(), Order.objects.count()), (before, 0))

    def test_a_committed_order_leaves_one(self) -> None:
        before = _tasks()
        self.client.post("/orders", {"email": "ada@example.org", "cents": "1"})
        self.assertEqual(_tasks(), before + 1)

    def test_a_task_outside_of_a_transaction_is_refused(self) -> None:
        with self.assertRaisesMessage(Exception, "transaction.atomic()"):
            pay.enqueue(connection, 1)

    def test_a_savepoint_that_rolls_back_takes_its_task_along(self) -> None:
        before = _tasks()
        with transaction.atomic():
            pay.enqueue(connection, 1)
            with self.assertRaises(KeyError), transaction.atomic():
                pay.enqueue(connection, 2)
                raise KeyError
        self.assertEqual(_tasks(), before + 1)

    def test_a_real_worker_pays(self) -> None:
        self.client.post("/orders", {"email": "ada@example.org", "cents": "350"})
        drain(app)
        order = Order.objects.get()
        self.assertEqual((order.paid, order.receipts), (True, 1))


class AdminTest(TestCase):
    def test_the_list_of_dead_letters_opens(self) -> None:
        self.client.force_login(User.objects.create_superuser("ada"))
        answer = self.client.get("/admin/late/deadletter/?q=x")
        self.assertEqual(answer.status_code, 200)
        self.assertEqual(DeadLetter.objects.count(), 0)
        self.assertEqual(app.group, "default")


def _tasks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from late_task")
        return int(cursor.fetchone()[0])
