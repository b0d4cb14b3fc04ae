-- Whoever inserts tasks reads which queues take none: a login keeps what it may do without a new
-- grant. PostgreSQL only, like all of this file; see docs/design/0085-admission.md.
DO $do$
DECLARE
  producer record;
BEGIN
  FOR producer IN
    SELECT DISTINCT a.grantee FROM pg_class c
      CROSS JOIN LATERAL (
        SELECT (aclexplode(c.relacl)).*
        UNION ALL
        SELECT (aclexplode(t.attacl)).* FROM pg_attribute t WHERE t.attrelid = c.oid
      ) a
     WHERE c.oid = 'late_task'::regclass AND a.privilege_type = 'INSERT'
       AND a.grantee <> c.relowner
  LOOP
    EXECUTE 'GRANT SELECT ON late_full TO '
      || CASE WHEN producer.grantee = 0 THEN 'PUBLIC' ELSE producer.grantee::regrole::text END;
  END LOOP;
END
$do$;

-- Raise if the queue, or the limit key of it, takes no new tasks: an operator closed the queue, or a
-- worker has counted no less than the bound within the last ten seconds.
CREATE FUNCTION late_admit(queue text, limit_key text) RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
  f record;
BEGIN
  SELECT l.* INTO f FROM late_full l
   WHERE l.name IN (queue, queue || ' ' || limit_key)
     AND l.until_us > extract(epoch FROM clock_timestamp()) * 1000000
   ORDER BY l.name LIMIT 1;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  RAISE EXCEPTION USING ERRCODE = '53400', MESSAGE = CASE
    WHEN f.bound = 0 THEN 'late: queue ' || queue || ' is closed: it takes no new tasks'
    WHEN f.name = queue THEN
      'late: queue ' || queue || ' holds ' || f.held || ' tasks, its bound is ' || f.bound
    ELSE 'late: key ' || limit_key || ' of queue ' || queue || ' holds ' || f.held
      || ' tasks, its bound is ' || f.bound END;
END
$$;

REVOKE EXECUTE ON FUNCTION late_admit(text, text) FROM PUBLIC;

-- late_enqueue asks for the key too, and chooses the shard by it. Only these lines are changed,
-- whatever else the function has become.
DO $do$
DECLARE
  f constant regprocedure := (
    SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE n.nspname = current_schema() AND p.proname = 'late_enqueue');
  before constant text := pg_get_functiondef(f);
  checked constant text := replace(before, $$PERFORM late_admit(queue);$$,
    $$IF headers ? 'limit_key' THEN
    PERFORM late_name(coalesce(headers ->> 'limit_key', ''), 'limit_key');
    IF ordering_key <> headers ->> 'limit_key' THEN
      RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'late: limit_key and ordering_key must be '
        || 'the same: each of them has its tasks in one shard';
    END IF;
  END IF;
  PERFORM late_admit(queue, headers ->> 'limit_key');$$);
  placed constant text := replace(checked, $$wide.first_shard + CASE WHEN ordering_key IS NULL
    THEN floor(random() * wide.shards)::int ELSE late_shard(ordering_key, wide.shards) END;$$,
    $$wide.first_shard + coalesce(
    late_shard(coalesce(ordering_key, headers ->> 'limit_key'), wide.shards),
    floor(random() * wide.shards)::int);$$);
BEGIN
  IF checked = before OR placed = checked THEN
    RAISE EXCEPTION 'late_enqueue is not as the migrations left it';
  END IF;
  EXECUTE placed;
END
$do$;

DROP FUNCTION late_admit(text);
