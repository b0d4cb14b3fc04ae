-- Workers that sleep are told of commits. A worker that is about to sleep sets `late_waiting` to some
-- seconds from now; a statement that inserts tasks then notifies at the commit. While nobody sleeps,
-- which is so wherever there is work, the trigger's condition is all that an insert pays: one look at
-- a page in memory. PostgreSQL only; see docs/design/0023-wake-ups.md.

-- To write an unlogged one costs no transaction id, no WAL and no flush.
DO $$ BEGIN
  IF current_setting('server_version_num')::int >= 150000 THEN
    CREATE UNLOGGED SEQUENCE late_waiting;
  ELSE
    CREATE SEQUENCE late_waiting;
  END IF;
END $$;

-- With the owner's rights, so that a producer needs none. `late.wake` is for a transaction that will be
-- prepared: PostgreSQL prepares none that has notified. A full queue of notifications would fail the
-- caller's commit.
CREATE FUNCTION late_wake() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  IF current_setting('late.wake', true) IS DISTINCT FROM 'off'
     AND pg_notification_queue_usage() < 0.5 THEN
    PERFORM pg_notify('late_wake', TG_TABLE_SCHEMA);
  END IF;
  RETURN NULL;
END
$$;

ALTER FUNCTION late_wake() SET search_path = pg_catalog, pg_temp;

-- Its last value is no secret, and every role that inserts tasks reads it.
GRANT SELECT ON SEQUENCE late_waiting TO PUBLIC;

CREATE TRIGGER late_wake AFTER INSERT ON late_task FOR EACH STATEMENT
  WHEN (to_timestamp(pg_sequence_last_value('late_waiting'::regclass)) > clock_timestamp())
  EXECUTE FUNCTION late_wake();
