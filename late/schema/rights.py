"""Rights that a migration leaves behind on PostgreSQL: `late roles sql` grants them by table, so
roles have none on the tables and functions that are new until it has run again."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, text

from late.schema.engine import make_engine, reading
from late.schema.roles import APART, HIDDEN, SECRET
from late.schema.tables import metadata

ADVICE = (
    "late roles sql | psql -v ON_ERROR_STOP=1 URL, as the owner of the tables, with the --schema"
    " and --prefix that made these roles"
)

# A role is known by what `late roles sql` has granted to it. Whoever reads leases reads all tables
# but some, and whoever changes leases changes them; whoever takes unique keys and changes no lease
# is a producer.
_LACKING = text(
    """
with tables as (
  select c.oid, c.relname, c.relowner, c.relacl from pg_class c
  where c.relnamespace = (select relnamespace from pg_class where oid = to_regclass('late_lease'))
    and c.relkind in ('r', 'p') and c.relname in :names
), grants as (
  select r.oid, r.rolname, t.relname, a.privilege_type as what
  from tables t, aclexplode(t.relacl) a join pg_roles r on r.oid = a.grantee
  where r.oid <> t.relowner
), of_leases as (
  select oid, rolname, case what when 'UPDATE' then 'INSERT' else what end as what from grants
  where relname = 'late_lease' and what in ('SELECT', 'UPDATE')
), producers as (
  select oid, rolname from grants where relname = 'late_unique' and what = 'DELETE'
    and not has_table_privilege(oid, to_regclass('late_lease'), 'UPDATE')
)
select r.rolname, t.relname as object from of_leases r, tables t
  where t.relname not in :apart and not has_table_privilege(r.oid, t.oid, r.what)
union
select r.rolname, t.relname from producers r, tables t
  where t.relname in ('late_full', 'late_lane') and not has_table_privilege(r.oid, t.oid, 'SELECT')
union
select r.rolname, p.proname from producers r, pg_proc p
  where p.pronamespace = (select relnamespace from pg_class where oid = to_regclass('late_lease'))
    and p.proname = 'late_enqueue' and not has_function_privilege(r.oid, p.oid, 'EXECUTE')
order by 1, 2
"""
).bindparams(
    bindparam("names", sorted(metadata.tables), expanding=True),
    bindparam("apart", sorted(HIDDEN | SECRET | APART), expanding=True),
)


def lacking(connection: Connection) -> dict[str, list[str]]:
    """Return role -> what it has no right on; empty on other databases than PostgreSQL.

    A role is among them if `late roles sql` has run for it before, under whatever name.
    """
    found: dict[str, list[str]] = {}
    if connection.dialect.name == "postgresql":
        for row in connection.execute(_LACKING):
            found.setdefault(str(row.rolname), []).append(str(row.object))
    return found


def read(url: str) -> dict[str, list[str]]:
    """Connect and read them: see `lacking`.

    Raises:
        ConfigError: the URL is wrong.
        StoreUnavailable, StoreError: from the database.
    """
    if not url.startswith("postgresql"):
        return {}
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            return lacking(connection)
    finally:
        engine.dispose()


def told(found: dict[str, list[str]]) -> str:
    """Return a sentence that names these roles, and what they lack."""
    objects = sorted({each for some in found.values() for each in some})
    roles, more = ", ".join(sorted(found)[:5]), ", ..." if len(found) > 5 else ""
    lacked = ", ".join(objects[:5]) + (", ..." if len(objects) > 5 else "")
    return f"{roles}{more}: rights on {lacked} are missing. Run: {ADVICE}"
