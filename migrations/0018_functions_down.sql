-- late_enqueue as it was before 0018_functions.sql.
CREATE FUNCTION late_admit(queue text) RETURNS void LANGUAGE plpgsql STABLE STRICT AS $$
DECLARE
  asked record;
  bound bigint;
BEGIN
  SELECT q.knobs::jsonb AS knobs, q.held, q.held_at_us INTO asked FROM late_queue q
   WHERE q.name = late_admit.queue;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  IF (asked.knobs ->> 'closed')::boolean THEN
    RAISE EXCEPTION USING MESSAGE = 'late: queue ' || queue || ' is closed: it takes no new tasks',
      ERRCODE = '53400';
  END IF;
  bound := (asked.knobs ->> 'max_backlog')::bigint;
  IF asked.held >= bound
     AND asked.held_at_us > extract(epoch FROM clock_timestamp()) * 1000000 - 10000000 THEN
    RAISE EXCEPTION USING MESSAGE = 'late: queue ' || queue || ' holds ' || asked.held
      || ' tasks, its bound is ' || bound, ERRCODE = '53400';
  END IF;
END
$$;

DO $do$
DECLARE
  f constant regprocedure := (
    SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE n.nspname = current_schema() AND p.proname = 'late_enqueue');
  before constant text := pg_get_functiondef(f);
  checked constant text := replace(before, $$IF headers ? 'limit_key' THEN
    PERFORM late_name(coalesce(headers ->> 'limit_key', ''), 'limit_key');
    IF ordering_key <> headers ->> 'limit_key' THEN
      RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'late: limit_key and ordering_key must be '
        || 'the same: each of them has its tasks in one shard';
    END IF;
  END IF;
  PERFORM late_admit(queue, headers ->> 'limit_key');$$,
    $$PERFORM late_admit(queue);$$);
  placed constant text := replace(checked, $$wide.first_shard + coalesce(
    late_shard(coalesce(ordering_key, headers ->> 'limit_key'), wide.shards),
    floor(random() * wide.shards)::int);$$,
    $$wide.first_shard + CASE WHEN ordering_key IS NULL
    THEN floor(random() * wide.shards)::int ELSE late_shard(ordering_key, wide.shards) END;$$);
BEGIN
  IF checked = before OR placed = checked THEN
    RAISE EXCEPTION 'late_enqueue is not as the migrations left it';
  END IF;
  EXECUTE placed;
END
$do$;

DROP FUNCTION late_admit(text, text);
