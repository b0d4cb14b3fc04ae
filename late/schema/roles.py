"""The least rights on PostgreSQL: five roles, and their rights on the tables of `late`.

An attacker with the rights of a producer can enqueue, but can neither read nor end the tasks of
others. It cannot choose the position of its own tasks in the log either: only the database sets
`xid`, the position. A task with a forged low position would never be delivered.
"""

from __future__ import annotations

import re
from collections.abc import Set

from late.errors import ConfigError

ROLES = ("enqueuer", "service", "worker", "viewer", "operator")
INSERTED = "shard_id, task_id, queue, name, payload, headers, options"
"""The columns of the log that a producer writes. `xid` and `created_at_us` are not among them."""
HIDDEN = {
    "late_task", "late_timer", "late_dead", "late_schedule", "late_result", "late_offer",
    "late_stage",
}  # fmt: skip
"""The tables whose payloads, headers and results a viewer cannot read."""
SECRET = {"late_token", "late_secret", "late_subject_key"}
"""The tables that no viewer reads. `late_secret` holds the key with which workers know each other:
whoever has it takes and ends any task. `late_subject_key` holds keys that the codec has wrapped."""
STAGE_INSERTED = (
    "workflow_id, stage, task_id, shard_id, state, missing, after, next, collects, on_failure,"
    " mark, queue, name, payload, headers, options"
)
"""The columns of a stage that a producer writes: not how its task ended."""
KEY_MADE = "subject, wrapped, created_at_us"
"""The columns of a subject's key that its first producer writes. It cannot drop or replace one."""
APART = {"late_task", "late_audit", "late_secret", "late_subject_key"}
"""The tables on which an operator has some rights only."""
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}\Z")
_SHOWN = {
    "late_task": "shard_id, xid, task_id, queue, name, options, created_at_us, asynchronous",
    "late_timer": "consumer_group, shard_id, due_at_us, task_id, reason, held_key, position,"
    " sequence, queue, name, options, created_at_us, attempts, deaths, errors",
    "late_dead": "consumer_group, shard_id, dead_at_us, task_id, reason, position, sequence,"
    " queue, name, options, created_at_us, attempts, deaths, errors",
    "late_schedule": "name, shard_id, rule, zone, catch_up, catch_up_max, overlap, queue,"
    " task_name, options, anchor_us, next_due_at_us, paused, open_task_id, updated_at_us",
    "late_result": "consumer_group, task_id, expires_at_us",
    "late_stage": "workflow_id, stage, task_id, state, missing, after, next, collects, on_failure,"
    " shard_id, queue, name, options, ended_at_us",
}


def script(*, schema: str = "public", prefix: str = "late_", stats: bool = True) -> str:
    """Return statements that make the roles and grant their rights; the tables' owner runs them.

    They may be run again, and must be run after a migration: rights are granted on each table.

    Args:
        stats: let operators see who has an old transaction, and with it the statements of all
            sessions of the server.

    Raises:
        ConfigError: `schema` or `prefix` is not a plain lower-case name.
    """
    for what, value in (("schema", schema), ("prefix", prefix)):
        if not _NAME.match(value):
            raise ConfigError(f"{what} must be a plain lower-case name, got {value!r:.60}")
    name = {role: f"{prefix}{role}" for role in ROLES}
    lines = [
        "-- Rights for late on PostgreSQL. Run as the owner of its tables, who may create roles;",
        "-- again after each migration. Then: GRANT <role> TO <your login>.",
        "BEGIN;",
        *(_create(role) for role in name.values()),
        f"GRANT USAGE ON SCHEMA {schema} TO {', '.join(name.values())};",
        f"SET LOCAL search_path = {schema};",
        "",
        _enqueuer(name["enqueuer"]),
        _service(name["service"]),
        _worker(name["worker"]),
        _viewer(name["viewer"]),
        _operator(name["operator"]),
        *([_sessions(name["operator"])] if stats else []),
        "COMMIT;",
    ]
    return "\n".join(lines) + "\n"


def _create(role: str) -> str:
    # Asked before: PostgreSQL wants the right to create roles before it sees that there is one.
    return (
        f"DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN"
        f" CREATE ROLE {role} NOLOGIN; END IF; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
    )


def _functions(role: str) -> str:
    """Return a statement that grants `late_enqueue`, for any parameters of that function."""
    return f"""DO $$ DECLARE f regprocedure; BEGIN
  FOR f IN SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
            WHERE n.nspname = current_schema() AND p.proname = 'late_enqueue' LOOP
    EXECUTE 'GRANT EXECUTE ON FUNCTION ' || f || ' TO {role}';
  END LOOP;
END $$;"""


def _each(role: str, rights: str, *, but: Set[str] = frozenset(), partitions: bool = False) -> str:
    """Return a statement that grants rights on all tables of `late` but some, or on the partitions
    of the log."""
    skipped = ", ".join(f"'{table}'" for table in sorted(but | {"late_revision"}))
    condition = f" AND {'' if partitions else 'NOT '}c.relispartition"
    return f"""DO $$ DECLARE t regclass; BEGIN
  FOR t IN SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p')
              AND c.relname LIKE 'late\\_%'{condition}
              AND c.relname NOT IN ({skipped}) LOOP
    EXECUTE 'GRANT {rights} ON ' || t || ' TO {role}';
  END LOOP;
END $$;"""


def _enqueuer(role: str) -> str:
    return f"""-- Producers: tasks in, nothing out. A unique key has to be looked at and taken;
-- where an ordering key leads is the lane's to say, and what takes no tasks is in late_full.
GRANT INSERT ({INSERTED}) ON late_task TO {role};
GRANT INSERT ({STAGE_INSERTED}) ON late_stage TO {role};
GRANT SELECT, INSERT, DELETE ON late_unique TO {role};
GRANT SELECT ON late_lane, late_full TO {role};
GRANT SELECT ON SEQUENCE late_waiting TO {role};
GRANT SELECT, INSERT ({KEY_MADE}) ON late_subject_key TO {role};
{_functions(role)}
"""


def _service(role: str) -> str:
    return f"""-- Services that also ask how their tasks ended: results, and what a viewer sees.
{_enqueuer(role)}{_viewer(role)}GRANT SELECT ON late_result TO {role};
"""


def _worker(role: str) -> str:
    return f"""-- Workers. Without owning the log they remove its rows one by one and lay out no
-- partitions; where tasks are many, grant them membership in the owner as well.
{_each(role, "SELECT, INSERT, UPDATE, DELETE", but={"late_task", "late_audit", *SECRET})}
GRANT SELECT, DELETE, INSERT ({INSERTED}) ON late_task TO {role};
{_each(role, "SELECT, DELETE, TRUNCATE", partitions=True)}
GRANT SELECT, INSERT ON late_audit TO {role};
GRANT SELECT ON late_token, late_secret TO {role};
GRANT SELECT, INSERT ({KEY_MADE}) ON late_subject_key TO {role};
GRANT SELECT, UPDATE ON SEQUENCE late_waiting TO {role};
"""


def _viewer(role: str) -> str:
    columns = "\n".join(
        f"GRANT SELECT ({shown}) ON {table} TO {role};" for table, shown in _SHOWN.items()
    )
    return f"""-- Viewers: states and counts, no payloads.
{_each(role, "SELECT", but=HIDDEN | SECRET)}
{columns}
"""


def _operator(role: str) -> str:
    return f"""-- Operators: what the command `late` does but migrate and rebase; the audit stays.
{_each(role, "SELECT, INSERT, UPDATE, DELETE", but=APART)}
GRANT SELECT (name, form_key) ON late_secret TO {role};
GRANT SELECT, UPDATE (wrapped, dropped_at_us) ON late_subject_key TO {role};
GRANT SELECT, DELETE, INSERT ({INSERTED}) ON late_task TO {role};
GRANT SELECT, INSERT ON late_audit TO {role};
{_functions(role)}
"""


def _sessions(role: str) -> str:
    # Before PostgreSQL 16 whoever may create roles may grant it, since then a superuser, or who has
    # it with the admin option. The other rights do not wait for that.
    return f"""-- They see as well since when a session of another role has a transaction open.
DO $$ BEGIN
  IF NOT pg_has_role('{role}', 'pg_read_all_stats', 'USAGE') THEN
    GRANT pg_read_all_stats TO {role};
  END IF;
EXCEPTION WHEN insufficient_privilege THEN
  RAISE WARNING 'old transactions stay hidden from {role}, until a superuser runs:'
    ' GRANT pg_read_all_stats TO {role};';
END $$;
"""
