"""Settings of the example. With `SHOP_HOST` it uses PostgreSQL, else a file of SQLite."""

import os
import secrets
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = os.environ.get("SHOP_SECRET", secrets.token_hex(32))
DEBUG = os.environ.get("SHOP_DEBUG") == "1"
ALLOWED_HOSTS = os.environ.get("SHOP_ALLOWED", "127.0.0.1,localhost,testserver").split(",")
ROOT_URLCONF = "project.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "late.contrib.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

if "SHOP_HOST" in os.environ:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": os.environ["SHOP_HOST"],
            "PORT": os.environ.get("SHOP_PORT", ""),
            "USER": os.environ.get("SHOP_USER", ""),
            "PASSWORD": os.environ.get("SHOP_PASSWORD", ""),
            "NAME": os.environ.get("SHOP_NAME", "shop"),
            # Keep a thread's connection for its next tasks, and look at it before each.
            "CONN_MAX_AGE": 600,
            "CONN_HEALTH_CHECKS": True,
        }
    }
else:
    FILE = os.environ.get("SHOP_FILE", str(BASE_DIR / "shop.db"))
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": FILE,
            "CONN_MAX_AGE": 600,
            # A worker in a test (`drain`) needs a file: a database in memory has one connection.
            "TEST": {"NAME": f"{FILE}.test"},
            # A worker and the web server write to one file: wait for each other.
            "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
        }
    }

LATE = {"SHARDS": 4}
TASKS = {"default": {"BACKEND": "late.contrib.django.backend.LateBackend", "QUEUES": []}}
