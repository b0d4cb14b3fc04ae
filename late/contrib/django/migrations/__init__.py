"""Migrations of Django that make the tables of `late`. A new schema of `late` adds one."""
