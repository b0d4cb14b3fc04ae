"""The example of a Django project: its own tests, and its tasks in a real worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from late.control import Control, Filter
from late.schema.version import SCHEMA_VERSION
from tests.servers import drop_database, fresh_database, postgres_url

PROJECT = Path(__file__).resolve().parents[2] / "examples" / "django"
PLACE = """
from django.test import Client
for n in range({count}):
    assert Client().post("/orders", {{"email": "ada@example.org", "cents": 100}}).status_code == 200
"""
RECEIPTS = """
from django.db import connection, transaction
from shop.models import Order
from shop.tasks import send_receipt
for n in range({count}):
    with transaction.atomic():
        order = Order.objects.create(email="ada@example.org", cents=100, paid=True)
        send_receipt.enqueue(connection, order.pk)
"""
"""Tasks of one attempt whose handler opens no transaction: nothing else mends its connection."""
WAIT = """
import time
from shop.models import Order
for _ in range(600):
    paid = Order.objects.filter(paid=True)
    if paid.filter(receipts__gte=1).count() == {count}:
        break
    time.sleep(0.1)
print(paid.count(), paid.filter(receipts__gte=1).count())
"""


CELERY = """
from django.db import transaction
from late.celery import Celery, NoTransaction
from late.contrib.django import app as late_app
from late.testing import drain
from shop.models import Order
app = Celery("shop", late_app=late_app)

@app.task(bind=True)
def pay(self, order_id):
    Order.objects.filter(pk=order_id).update(paid=True)

kept, gone = [Order.objects.create(email="ada@example.org", cents=100) for _ in range(2)]
with transaction.atomic():
    pay.delay(kept.pk)
    try:
        with transaction.atomic():
            pay.delay(gone.pk)
            raise ValueError
    except ValueError:
        pass
try:
    pay.delay(gone.pk)
    outside = "committed"
except NoTransaction:
    outside = "refused"
ended = drain(late_app)
print(outside, ended, *Order.objects.order_by("pk").values_list("paid", flat=True))
"""
"""A task of Celery's interface, in a block, in a savepoint that is rolled back, and in neither."""


class Site:
    """The project on one database. `manage` runs one command of its `manage.py`."""

    def __init__(self, url: str, variables: Mapping[str, str], folder: Path) -> None:
        self.url = url
        self.environment = os.environ | variables | {"LATE_LEASE_TTL_S": "2"}
        self.environment.pop("LATE_URL", None)
        self._log = folder / "worker.log"
        self._workers: list[subprocess.Popen[bytes]] = []

    def manage(self, *arguments: str, fails: bool = False) -> str:
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(
            command,
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def shell(self, code: str) -> str:
        return self.manage("shell", "-c", code).strip().rpartition("\n")[2]

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "manage.py", "late_worker", *options],
                cwd=PROJECT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._workers.append(worker)
        return worker

    def stop(self) -> None:
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers:
            worker.wait(120)


@pytest.fixture(params=["sqlite", "postgresql"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "sqlite":
        file = tmp_path / "shop.db"
        found = Site(f"sqlite:///{file}", {"SHOP_FILE": str(file)}, tmp_path)
        yield found
        found.stop()
        return
    admin = postgres_url()
    if admin is None:
        pytest.skip("no PostgreSQL: set LATE_TEST_POSTGRES_URL or install one")
    url = fresh_database(admin)
    parsed = make_url(url)
    variables = {
        "SHOP_HOST": str(parsed.query.get("host", parsed.host) or "localhost"),
        "SHOP_PORT": str(parsed.port or ""),
        "SHOP_USER": parsed.username or "",
        "SHOP_PASSWORD": parsed.password or "",
        "SHOP_NAME": str(parsed.database),
    }
    found = Site(url, variables, tmp_path)
    yield found
    found.stop()
    drop_database(admin, url)


def test_the_tests_of_the_project_pass(site: Site) -> None:
    assert "\nOK\n" in site.manage("test", "--noinput")


def test_orders_are_paid_once_through_a_kill_and_cut_connections(site: Site) -> None:
    site.manage("migrate", "--verbosity", "0")
    first = site.start()
    site.shell(PLACE.format(count=15))
    first.kill()
    site.start("--concurrency", "4")
    assert site.shell(PLACE.format(count=15) + WAIT.format(count=30)) == "30 30"
    cut_all(site)
    assert site.shell(RECEIPTS.format(count=10) + WAIT.format(count=40)) == "40 40"
    with Control(site.url) as control:
        assert control.verify().ok
        assert control.dead_letters.purge(Filter(), dry_run=True).count == 0


def cut_all(site: Site) -> None:
    """End every connection to the database on the server, as a failover does."""
    if site.url.startswith("sqlite"):
        return
    name = make_url(site.url).database
    server = make_url(site.url).set(drivername="postgresql", database="postgres")
    with psycopg.connect(server.render_as_string(hide_password=False)) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,)
        )


RESULTS = """
from shop.tasks import total
from shop.models import Order
from django.db import transaction
import time
Order.objects.create(email="ada@example.org", cents=350)
with transaction.atomic():
    results = [total.enqueue(minimum=100), total.using(priority=7).enqueue(400)]
broken = total.enqueue(minimum="x")
for _ in range(300):
    for result in (*results, broken):
        result.refresh()
    if all(result.is_finished for result in (*results, broken)):
        break
    time.sleep(0.1)
print([r.return_value for r in results], broken.status.value, broken.errors[0].exception_class_path,
      total.get_result(results[1].id).task.priority, len(broken.worker_ids))
"""
DIE = """
from django.db import connection, transaction
from shop.tasks import remind
import time
from late.contrib.django.models import DeadLetter
with transaction.atomic():
    remind.enqueue(connection, 77)
for _ in range(300):
    if DeadLetter.objects.filter(name="remind").exists():
        break
    time.sleep(0.1)
letter = DeadLetter.objects.get(name="remind")
print(letter.name, letter.reason, letter.last_error.partition(":")[0], end=" ")
"""
REDRIVE = """
from django.db import connection
from django.contrib.auth.models import Permission, User
from django.test import Client
from late.contrib.django.models import DeadLetter
from shop.models import Order
import time
Order.objects.create(pk=77, email="ada@example.org", cents=1)
letter = DeadLetter.objects.get(name="remind")
form = {"action": "redrive", "_selected_action": letter.pk}
page = "/admin/late/deadletter/"
viewer = User.objects.create(username="viewer", is_staff=True)
viewer.user_permissions.add(Permission.objects.get(codename="view_deadletter"))
client = Client()
client.force_login(viewer)
assert b"remind" in client.get(page).content
client.post(page, form)
assert DeadLetter.objects.filter(name="remind").exists(), "a viewer has sent it back"
client.force_login(User.objects.create_superuser("ada"))
assert b"1 redriven" in client.post(page, form, follow=True).content
with connection.cursor() as cursor:
    cursor.execute("select distinct actor from late_audit where action = 'dead.redrive'")
    print(DeadLetter.objects.filter(name="remind").count(), cursor.fetchall()[0][0])
"""


ENQUEUE = """
from django.db import connection, transaction
from shop.tasks import pay
with transaction.atomic():
    pay.enqueue(connection, 1)
"""
FROM_CODE = """
import io, json, os
from django.core.management import CommandError, call_command
os.environ["LATE_URL"] = "sqlite:////nowhere.db"
told = io.StringIO()
call_command("late", "status", "--json", stdout=told)
try:
    call_command("late_status", "--nonsense")
except CommandError as error:
    code = error.returncode
from django_tasks.exceptions import TaskResultDoesNotExist
from django.db import connection, transaction
from shop.tasks import pay, total
with transaction.atomic():
    task_id = pay.enqueue(connection, 1)
try:
    total.get_result(task_id)
except TaskResultDoesNotExist:
    kept = os.environ["LATE_URL"].endswith("nowhere.db")
    print("queues" in json.loads(told.getvalue()), kept, code)
"""


WAITING = """
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client
from late.contrib.django import waiting_tasks
from shop.tasks import pay, remind
import re, time
with transaction.atomic():
    ids = {pay.enqueue(connection, 123454321 + n) for n in range(30)}
    remind.options(delay=86400).enqueue(connection, 7)
page = "/admin/late/waitingtask/"
viewer = User.objects.create(username="viewer", is_staff=True)
client = Client()
client.force_login(viewer)
assert client.get(page).status_code == 403
viewer.user_permissions.add(Permission.objects.get(codename="view_waitingtask"))
whole = client.get(page).content.decode()
assert "12345" not in whole and whole.count("<td>pay</td>") + whole.count("<td>remind</td>") == 20
assert client.get(page + "x/change/").status_code == 404
assert b"waiting tasks" in client.get("/admin/").content.lower()
waiting_tasks.PAGE = 7
seen, link = [], "?state=logged&queue=payments"
while link:
    text = client.get(page + link).content.decode()
    seen += re.findall("<td>([0-9a-f-]{36})</td>", text)
    found = re.search('href="([?]state=[^"]*)"', text)
    link = found and found[1].replace("&amp;", "&")
assert len(seen) == 30 and set(seen) == ids, seen
print("logged", len(seen), end=" ")
"""
PARKED = """
from late.contrib.django import waiting_tasks
import time
def of(state, **query):
    found = waiting_tasks.sections({"state": state, **query})
    assert "error" not in found, found
    return [(task["name"], task["reason"]) for task in found["sections"][0]["tasks"]]
for _ in range(300):
    if of("parked"):
        break
    time.sleep(0.5)
# The settlement that parks it lists what else the worker has of its shard.
left = of("open", queue="payments")
others = of("open", name="remind") + of("logged", name="remind")
print(of("parked"), len(left) > 0, len(left) + len(of("logged", queue="payments")), others)
"""


def test_tasks_that_wait_in_the_admin(site: Site) -> None:
    site.manage("migrate", "--verbosity", "0")
    assert site.shell(WAITING) == "logged 30"
    site.manage("late", "queue", "pause", "payments")
    site.start()
    assert site.shell(PARKED) == "[('remind', 'delay')] True 30 []"


def test_results_of_djangos_interface_and_dead_letters_in_the_admin(site: Site) -> None:
    site.manage("migrate", "--verbosity", "0")
    site.start()
    assert site.shell(RESULTS) == "[350, 0] FAILED builtins.ValueError 7 1"
    assert (
        site.shell(DIE + REDRIVE)
        == "remind attempts_exhausted shop.models.Order.DoesNotExist 0 ada"
    )


def test_a_task_written_for_celery_commits_with_the_block(site: Site) -> None:
    site.manage("migrate", "--verbosity", "0")
    assert "refused {'done': 1} True False\n" in site.manage("shell", "-c", CELERY)


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_a_command_ends_with_the_code_of_late(
    site: Site, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("settings")
    for command in (("late_status",), ("shell", "-c", ENQUEUE)):
        assert "`manage.py migrate late --database default`" in site.manage(*command, fails=True)
    assert "`manage.py late_worker [OPTIONS]`" in site.manage("late", "worker", fails=True)
    assert "applied 0001, 0002" in site.manage("late_migrate")
    assert f"up to date at {SCHEMA_VERSION}" in site.manage("late", "migrate")
    assert "`manage.py late_worker` for `late worker MODULE:APP`" in site.manage("late", "doctor")
    told = site.manage("late_worker", "--help")
    assert told.startswith("manage.py late_worker [OPTIONS]")
    assert "Usage" in told
    (folder / "targets.py").write_text(
        "import late\nfrom project.settings import *\n"
        "LATE = {'TARGETS': [late.HttpTarget('hooks', 'http://127.0.0.1:1/')]}\n"
    )
    project = "--settings=targets", f"--pythonpath={folder}"
    listed = site.manage("late", "target", "list", "--check", *project, fails=True)
    assert "hooks" in listed
    assert "not configured here" not in listed
    assert "True True 2" in site.manage("shell", "-c", FROM_CODE)
    assert "No changes" in site.manage("makemigrations", "--check", "--dry-run")


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_wrong_settings_are_reported_by_the_check_and_stop_all_else(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "wrong.py").write_text("from project.settings import *\nLATE = {'SHARD': 8}\n")
    site.environment |= {"DJANGO_SETTINGS_MODULE": "wrong", "PYTHONPATH": str(tmp_path)}
    told = site.manage("check", fails=True)
    assert told.count("(late.E004)") == 1
    assert "Traceback" not in told
    stopped = site.manage("migrate", fails=True)
    assert "ImproperlyConfigured: LATE has no SHARD; it has DATABASE" in stopped
