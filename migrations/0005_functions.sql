-- What SQL producers are refused, as all others are: arguments that no handler could read, queues
-- that are closed or hold too much. PostgreSQL only; what is not here is in 0003_functions.sql.

-- Raise unless a worker can decode these arguments: 64 levels, 10,000 keys, whole numbers within 64
-- bits. jsonb has refused NUL, NaN and lone surrogates. Nearly all pass by a look at the text.
CREATE FUNCTION late_check_args(args jsonb) RETURNS void LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  body constant text := args::text;
  found record;
BEGIN
  IF length(body) - length(translate(body, '{[', '')) <= 64
     AND length(body) - length(replace(body, ':', '')) <= 10000
     AND body !~ '[0-9]{19}' THEN
    RETURN;
  END IF;
  WITH RECURSIVE walk(node, depth) AS (
    SELECT args, 1
    UNION ALL
    SELECT child.value, depth + 1
      FROM walk, LATERAL (
        SELECT e.value FROM jsonb_each(CASE jsonb_typeof(node) WHEN 'object' THEN node END) e
        UNION ALL
        SELECT e.value FROM jsonb_array_elements(CASE jsonb_typeof(node) WHEN 'array' THEN node END) e
      ) child
     WHERE depth <= 64
  )
  SELECT coalesce(max(depth) FILTER (WHERE jsonb_typeof(node) IN ('object', 'array')), 0) AS levels,
         sum((SELECT count(*) FROM jsonb_object_keys(
           CASE jsonb_typeof(node) WHEN 'object' THEN node END))) AS keys,
         bool_or(CASE WHEN jsonb_typeof(node) <> 'number' THEN false
           WHEN node::text ~ '[.]' THEN abs(node::numeric) > 1.7e308
           ELSE node::numeric NOT BETWEEN -9223372036854775808 AND 18446744073709551615
         END) AS huge
    INTO found FROM walk;
  IF found.levels > 64 OR found.keys > 10000 OR found.huge THEN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'late: args must have at most 64 levels, '
      || '10,000 keys, and whole numbers within 64 bits';
  END IF;
END
$$;

-- Raise where an operator closed the queue (late queue set NAME closed=on), or where a worker has
-- counted no less than max_backlog in it within the last ten seconds.
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

CREATE OR REPLACE FUNCTION late_enqueue(
  name text,
  args jsonb DEFAULT '{}',
  queue text DEFAULT 'default',
  delay interval DEFAULT NULL,
  at timestamptz DEFAULT NULL,
  expires interval DEFAULT NULL,
  priority int DEFAULT 0,
  ordering_key text DEFAULT NULL,
  unique_key text DEFAULT NULL,
  unique_for interval DEFAULT NULL,
  on_conflict text DEFAULT 'existing',
  headers jsonb DEFAULT NULL,
  lane text DEFAULT 'default'
) RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
  wide record;
  payload constant bytea := convert_to(args::text, 'UTF8');
  asked jsonb;
  shard int;
  id uuid;
  holder uuid;
BEGIN
  PERFORM late_name(coalesce(late_enqueue.name, ''), 'name'), late_name(coalesce(queue, ''), 'queue'),
          late_name(ordering_key, 'ordering_key'), late_name(unique_key, 'unique_key');
  IF left(late_enqueue.name, 5) = 'late.' OR left(queue, 5) = 'late.' THEN
    RAISE EXCEPTION USING MESSAGE = 'late: names that begin with late. are reserved',
      ERRCODE = '22023';
  END IF;
  IF args IS NULL OR jsonb_typeof(args) <> 'object' THEN
    RAISE EXCEPTION USING MESSAGE = 'late: args must be a JSON object',
      ERRCODE = '22023';
  END IF;
  IF length(payload) > 1048576 THEN
    RAISE EXCEPTION USING MESSAGE = 'late: args take ' || length(payload) || ' bytes, the limit is 1048576',
      ERRCODE = '22023';
  END IF;
  PERFORM late_check_args(args);
  IF headers IS NOT NULL AND (jsonb_typeof(headers) <> 'object' OR octet_length(headers::text) > 8192
     OR EXISTS (SELECT 1 FROM jsonb_each(headers) e
                 WHERE jsonb_typeof(e.value) <> 'string' OR e.key = '')) THEN
    RAISE EXCEPTION USING MESSAGE = 'late: headers must be a JSON object of strings, at most 8 KiB',
      ERRCODE = '22023';
  END IF;
  IF priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN
    RAISE EXCEPTION USING MESSAGE = 'late: priority must be -100..100',
      ERRCODE = '22023';
  END IF;
  IF delay IS NOT NULL AND at IS NOT NULL THEN
    RAISE EXCEPTION USING MESSAGE = 'late: give delay or at, not both',
      ERRCODE = '22023';
  END IF;
  IF on_conflict IS NULL OR on_conflict NOT IN ('existing', 'reject')
     OR (unique_key IS NULL AND (unique_for IS NOT NULL OR on_conflict <> 'existing')) THEN
    RAISE EXCEPTION USING MESSAGE = 'late: on_conflict is existing or reject, for a unique_key',
      ERRCODE = '22023';
  END IF;
  IF expires <= interval '0' OR expires <= delay THEN
    RAISE EXCEPTION USING MESSAGE = 'late: expires is not after the delay: it could never run',
      ERRCODE = '22023';
  END IF;
  IF unique_for <= interval '0' THEN
    RAISE EXCEPTION USING MESSAGE = 'late: unique_for must be above 0 seconds',
      ERRCODE = '22023';
  END IF;
  PERFORM late_admit(queue);
  SELECT * INTO wide FROM late_lane l WHERE l.name = lane;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING MESSAGE = 'late: there is no lane ' || coalesce(lane, '(null)'),
      ERRCODE = '22023';
  END IF;
  shard := wide.first_shard + CASE WHEN ordering_key IS NULL
    THEN floor(random() * wide.shards)::int ELSE late_shard(ordering_key, wide.shards) END;
  id := late_task_id(shard);
  asked := jsonb_strip_nulls(jsonb_build_object(
    'delay_us', nullif(late_micros(greatest(delay, interval '0'), 'delay'), 0),
    'at_us', late_moment(at, 'at'),
    'expires_in_us', late_micros(expires, 'expires'),
    'priority', nullif(priority, 0),
    'ordering_key', ordering_key,
    'unique_key', unique_key));
  IF unique_key IS NOT NULL THEN
    holder := late_take_key(unique_key, id, 'sql:' || encode(sha256(
      convert_to(late_enqueue.name, 'UTF8') || '\x00'::bytea || payload), 'hex'),
      unique_for, on_conflict);
    IF holder <> id THEN
      RETURN holder;
    END IF;
  END IF;
  INSERT INTO late_task (shard_id, task_id, queue, name, payload, headers, options)
  VALUES (shard, id, queue, late_enqueue.name, payload, nullif(headers::text, '{}'),
          CASE WHEN asked <> '{}'::jsonb THEN asked::text END);
  RETURN id;
END
$$;

-- With the owner's rights, so that who may call it needs none on the tables: not to be called by
-- everyone, and not to be led to other tables by the caller's search path.
DO $$
DECLARE
  f constant regprocedure := (
    SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE n.nspname = current_schema() AND p.proname = 'late_enqueue');
BEGIN
  EXECUTE 'ALTER FUNCTION ' || f || ' SET search_path = pg_catalog, '
    || quote_ident(current_schema()) || ', pg_temp';
  EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || f || ' FROM PUBLIC';
END
$$;
