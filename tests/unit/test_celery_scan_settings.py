"""The scan finds settings in every form that an app takes them in, and tells what it does not."""

from __future__ import annotations

import pytest

from tests.unit.test_celery_scan import scanned

APP = "from celery import Celery\napp = Celery('shop')\n"
FOUND = {"task_acks_late", "argument.pickle", "task_serializer", "broker_url"}
VALUES = "broker_url='x', task_acks_late=True, task_serializer='pickle'"
PAIRS = "'broker_url': 'x', 'task_acks_late': True, 'task_serializer': 'pickle'"
LINES = "broker_url = 'x'\n    task_acks_late: bool = True\n    task_serializer = 'pickle'\n"

FORMS = {
    "a mapping": (f"app.config_from_object({{{PAIRS}}})", {}),
    "dict()": (f"app.config_from_object(dict({VALUES}))", {}),
    "the keyword obj": (f"app.config_from_object(obj=dict({VALUES}))", {}),
    "a name": (f"CELERY = {{{PAIRS}}}\napp.config_from_object(CELERY)", {}),
    "a name of a function": (
        f"def make():\n    found = dict({VALUES})\n    app.config_from_object(found)", {},
    ),
    "a name of another module": (
        "from settings import CELERY\napp.config_from_object(CELERY)",
        {"settings": f"CELERY = {{{PAIRS}}}"},
    ),
    "an attribute of a module": (
        "import settings\napp.config_from_object(settings.CELERY)",
        {"settings": f"CELERY = {{{PAIRS}}}"},
    ),
    "the text of a name": (
        "app.config_from_object('settings:celery')", {"settings": f"celery = {{{PAIRS}}}"},
    ),
    "Flask's config_from_mapping": (
        f"app.config_from_object(flask.config['CELERY'])\n"
        f"flask.config.from_mapping(CELERY=dict({VALUES}))", {},
    ),
    "Flask's config_from_mapping of a mapping": (
        f"app.config_from_object(flask.config['CELERY'])\n"
        f"flask.config.from_mapping({{'CELERY': {{{PAIRS}}}}})", {},
    ),
    "an item": (
        f"flask.config['CELERY'] = {{{PAIRS}}}\n"
        "app.config_from_object(flask.config.get('CELERY', {}))", {},
    ),
    "a class of Flask's": (
        "app.config_from_object(flask.config['CELERY'])",
        {"settings": f"class Config:\n    CELERY = {{{PAIRS}}}"},
    ),
    "a setting of Django's": (
        "from django.conf import settings\napp.config_from_object(settings.CELERY)",
        {"settings": f"CELERY = {{{PAIRS}}}"},
    ),
    "a class": (f"class Config:\n    {LINES}\napp.config_from_object(Config)", {}),
    "an object of a class": (f"class Config:\n    {LINES}\napp.config_from_object(Config())", {}),
    "a class of a class": (
        "from base import Base\nclass Config(Base):\n    other = 1\napp.config_from_object(Config)",
        {"base": f"class Base(object):\n    {LINES}"},
    ),
    "the text of a class": (
        "app.config_from_object('settings.Config')", {"settings": f"class Config:\n    {LINES}"},
    ),
    "parts": (
        "some = {'broker_url': 'x'}\n"
        "app.config_from_object({**some, **dict(task_acks_late=True)}"
        " | dict({'task_serializer': 'pickle'}))", {},
    ),
    "itself with more": (
        "found = {'broker_url': 'x'}\nfound = {**found, 'task_acks_late': True}\n"
        "found = found | {'task_serializer': 'pickle'}\napp.config_from_object(found)", {},
    ),
    "an update": (f"found = {{{PAIRS}}}\napp.conf.update(found)", {}),
    "an update by keywords": (f"app.conf.update(dict(broker_url='x'), {VALUES})", {}),
    "an update by two stars": (f"found = {{{PAIRS}}}\napp.conf.update(**found)", {}),
    "config_source": (f"other = Celery('x', config_source=dict({VALUES}))", {}),
    "keywords of the app": (f"other = Celery('x', {VALUES.replace('broker_url', 'broker')})", {}),
    "changes": (f"other = Celery('x', changes={{{PAIRS}}})", {}),
    "a namespace": (
        "app.config_from_object('settings', namespace='SHOP')",
        {"settings": "SHOP_BROKER_URL = 'x'\nSHOP_TASK_ACKS_LATE = True\n"
                     "SHOP_TASK_SERIALIZER = 'pickle'"},
    ),
    "old names": (
        "app.config_from_object({'BROKER_URL': 'x', 'CELERY_ACKS_LATE': True,"
        " 'CELERY_TASK_SERIALIZER': 'pickle'})", {},
    ),
    "names in capitals": (
        "flask.config.update(CELERY_BROKER_URL='x', CELERY_TASK_SERIALIZER='pickle')\n"
        "flask.config['CELERY_ACKS_LATE'] = True\napp.conf.update(flask.config)", {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_settings_are_found_in_every_form(form: str) -> None:
    text, others = FORMS[form]
    found = scanned(APP + text, **others)
    names = {use.feature.removeprefix("setting.") for use in found.others if use.kind != "app"}
    assert names == FOUND
    assert found.worst == "unsupported"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("app.config_from_object(load())\n", 3),
        ("app.config_from_object(load(1))\n", 3),
        ("app.config_from_object(f'{x}.settings')\n", 3),
        ("app.config_from_object('shop.nowhere')\n", 3),
        ("app.config_from_object(config['CELERY'])\n", 3),
        ("app.config_from_envvar('CELERY_CONFIG')\n", 3),
        ("app.conf.update(load())\n", 3),
        ("app.config_from_object({\n    **load(),\n    'timezone': 'UTC'})\n", 4),
        ("app.config_from_object({\n    name: 1})\n", 4),
        ("".join(f"a{n} = a{n + 1}\n" for n in range(80)) + "app.config_from_object(a0)", 52),
        ("b = Celery('x', config_source=load())\n", 3),
    ],
)
def test_settings_that_are_not_read_are_told(text: str, line: int) -> None:
    found = scanned(APP + text)
    [missing] = [each for each in found.missing() if each.feature == "setting.not read"]
    assert (missing.verdict, missing.first) == ("edit", f"tasks.py:{line}")
    assert "look at them yourself" in missing.note


@pytest.mark.parametrize(
    "text",
    [
        "app.config_from_object('django.conf:settings', namespace='CELERY')",
        "from django.conf import settings\napp.config_from_object(settings)",
        "app.conf.update(flask.config)",
        "app.config_from_object(flask.config, namespace='CELERY')",
        "other.update(load())",
    ],
)
def test_settings_that_are_found_by_their_names_are_no_question(text: str) -> None:
    assert not scanned(APP + text).missing()


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("app.conf.result_expires = None", "setting.result_expires=None"),
        ("app.conf.task_routes = {'a': {'exchange': 'x'}}", "setting.task_routes=function"),
        ("app.conf.task_routes = [route]", "setting.task_routes=function"),
        ("app.conf.task_routes = ('shop.route',)", "setting.task_routes=function"),
        ("app.conf.task_routes = lambda name, *_: {'queue': 'x'}", "setting.task_routes=function"),
        ("app.conf.task_routes = {'a': {'queue': 'x'}, 'b': 'y'}", None),
        ("app.conf.task_routes = [('a.*', {'queue': 'x'}), {'b': 'y'}]", None),
        ("app.conf.task_routes = ROUTES", None),
        ("app.conf.result_expires = 60", None),
    ],
)
def test_values_that_are_refused_are_told(text: str, feature: str | None) -> None:
    missing = [each.feature for each in scanned(APP + text).missing()]
    assert missing == ([] if feature is None else [feature])


def test_a_name_that_is_set_many_times_is_followed_once_each() -> None:
    text = "found = {**found, 'timezone': 'UTC'}\n" * 20
    found = scanned(APP + text + "app.config_from_object(found)")
    assert [use.name for use in found.others] == ["timezone"] * 20


def test_acks_late_that_is_off_is_what_celery_does_anyway() -> None:
    task = "@app.task\ndef f(): ...\n"
    assert scanned(APP + task + "app.conf.task_acks_late = False").at_most_once == 1
    assert scanned(APP + task + "app.conf.task_acks_late = True").at_most_once == 0
