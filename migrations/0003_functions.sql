-- Functions for producers in any language: see docs/sql.md. PostgreSQL only.

-- The 64-bit hash XXH3 of a name (1 to 128 bytes), as a signed number: what ordering keys are spread
-- over the shards by. Unsigned arithmetic is done in numeric; a bigint holds the same 64 bits.
-- Source: the specification of xxHash, doc/xxhash_spec.md.
CREATE FUNCTION late_bits(n numeric) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT CASE WHEN m < 9223372036854775808 THEN m ELSE m - 18446744073709551616 END::bigint
    FROM (SELECT mod(mod(n, 18446744073709551616) + 18446744073709551616,
                     18446744073709551616) AS m) r
$$;

CREATE FUNCTION late_unsigned(n bigint) RETURNS numeric LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT CASE WHEN n < 0 THEN n + 18446744073709551616 ELSE n::numeric END
$$;

-- The upper bits of n, as if it had no sign.
CREATE FUNCTION late_right(n bigint, bits int) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT (n >> bits) & ((1::bigint << (64 - bits)) - 1)
$$;

-- Some bytes as a number, the first one lowest.
CREATE FUNCTION late_number(b bytea, start int, bytes int) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT bit_or(get_byte(b, start + i)::bigint << (8 * i)) FROM generate_series(0, bytes - 1) i
$$;

-- The halves of the 128-bit product, one laid over the other.
CREATE FUNCTION late_fold(a bigint, b bigint) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT late_bits(p) # late_bits(div(p, 18446744073709551616))
    FROM (SELECT late_unsigned(a) * late_unsigned(b) AS p) r
$$;

CREATE FUNCTION late_xxh3(name text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  s constant bytea := '\xb8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364';
  b constant bytea := convert_to(name, 'UTF8');
  n constant int := length(b);
  h bigint;
  lo bigint;
  hi bigint;
  sum numeric;
BEGIN
  IF n < 1 OR n > 128 THEN
    RAISE EXCEPTION USING MESSAGE = 'late_xxh3 takes 1 to 128 bytes',
      ERRCODE = '22023';
  ELSIF n <= 3 THEN
    h := (get_byte(b, 0)::bigint << 16) | (get_byte(b, n >> 1)::bigint << 24)
       | get_byte(b, n - 1) | (n::bigint << 8);
    h := h # (late_number(s, 0, 4) # late_number(s, 4, 4));
    h := h # late_right(h, 33);
    h := late_bits(late_unsigned(h) * 14029467366897019727);
    h := h # late_right(h, 29);
    h := late_bits(late_unsigned(h) * 1609587929392839161);
    RETURN h # late_right(h, 32);
  ELSIF n <= 8 THEN
    h := late_number(b, n - 4, 4) | (late_number(b, 0, 4) << 32);
    h := h # late_number(s, 8, 8) # late_number(s, 16, 8);
    h := h # ((h << 49) | late_right(h, 15)) # ((h << 24) | late_right(h, 40));
    h := late_bits(late_unsigned(h) * 11507291218515648293);
    h := h # (late_right(h, 35) + n);
    h := late_bits(late_unsigned(h) * 11507291218515648293);
    RETURN h # late_right(h, 28);
  ELSIF n <= 16 THEN
    lo := late_number(b, 0, 8) # late_number(s, 24, 8) # late_number(s, 32, 8);
    hi := late_number(b, n - 8, 8) # late_number(s, 40, 8) # late_number(s, 48, 8);
    sum := n + late_unsigned(hi) + late_unsigned(late_fold(lo, hi));
    FOR i IN 0..7 LOOP  -- the bytes of lo, turned around
      sum := sum + late_unsigned((late_right(lo << (56 - 8 * i), 56)) << (56 - 8 * i));
    END LOOP;
  ELSE
    sum := n * 11400714785074694791::numeric;
    FOR i IN 0..(n - 1) / 32 LOOP
      sum := sum + late_unsigned(late_fold(
          late_number(b, 16 * i, 8) # late_number(s, 32 * i, 8),
          late_number(b, 16 * i + 8, 8) # late_number(s, 32 * i + 8, 8)));
      lo := n - 16 * (i + 1);
      sum := sum + late_unsigned(late_fold(
          late_number(b, lo::int, 8) # late_number(s, 32 * i + 16, 8),
          late_number(b, lo::int + 8, 8) # late_number(s, 32 * i + 24, 8)));
    END LOOP;
  END IF;
  h := late_bits(sum);
  h := h # late_right(h, 37);
  h := late_bits(late_unsigned(h) * 1609587791953885689);
  RETURN h # late_right(h, 32);
END
$$;

-- The shard of an ordering key among `shards` of them.
CREATE FUNCTION late_shard(ordering_key text, shards int) RETURNS smallint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT mod(late_unsigned(late_xxh3(ordering_key)), shards)::smallint
$$;

-- A new task id: a UUIDv7 with the shard in the twelve bits behind the version.
CREATE FUNCTION late_task_id(shard int) RETURNS uuid LANGUAGE sql VOLATILE STRICT PARALLEL SAFE AS $$
  SELECT (lpad(to_hex(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
          || '7' || lpad(to_hex(shard), 3, '0')
          || substr(replace(gen_random_uuid()::text, '-', ''), 17, 16))::uuid
$$;

CREATE FUNCTION late_name(value text, what text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF value IS NOT NULL AND value !~ '^[A-Za-z0-9._:-]{1,128}$' THEN
    RAISE EXCEPTION USING MESSAGE = 'late: ' || what || ' must match [A-Za-z0-9._:-]{1,128}',
      ERRCODE = '22023';
  END IF;
  RETURN value;
END
$$;

-- Microseconds of an interval, 0 to 366 days.
CREATE FUNCTION late_micros(value interval, what text) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  us constant numeric := extract(epoch FROM value) * 1000000;
BEGIN
  IF us < 0 OR us > 31622400000000 THEN
    RAISE EXCEPTION USING MESSAGE = 'late: ' || what || ' must be 0 to 366 days',
      ERRCODE = '22023';
  END IF;
  RETURN us::bigint;
END
$$;

-- Microseconds since the epoch of a moment at most 366 days ahead.
CREATE FUNCTION late_moment(value timestamptz, what text) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  IF NOT isfinite(value) OR value > clock_timestamp() + interval '366 days'
     OR value < 'epoch'::timestamptz THEN
    RAISE EXCEPTION USING MESSAGE = 'late: ' || what || ' must be at most 366 days ahead',
      ERRCODE = '22023';
  END IF;
  RETURN (extract(epoch FROM value) * 1000000)::bigint;
END
$$;

-- Take a unique key for a task; the task that holds it. See docs/sql.md.
CREATE FUNCTION late_take_key(key text, id uuid, body text, period interval, mode text)
RETURNS uuid LANGUAGE plpgsql VOLATILE AS $$
DECLARE
  held record;
  now_us bigint;
BEGIN
  FOR round IN 1..5 LOOP
    now_us := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    INSERT INTO late_unique (unique_key, task_id, digest, created_at_us, expires_at_us)
    VALUES (key, id, body, now_us, -(now_us + late_micros(period, 'unique_for')))
    ON CONFLICT (unique_key) DO NOTHING;
    IF FOUND THEN
      RETURN id;
    END IF;
    DELETE FROM late_unique WHERE unique_key = key AND expires_at_us BETWEEN 1 AND now_us;
    SELECT * INTO held FROM late_unique WHERE unique_key = key;
    CONTINUE WHEN NOT FOUND;
    IF mode = 'reject' OR (left(held.digest, 4) = 'sql:' AND held.digest <> body) THEN
      RAISE EXCEPTION USING MESSAGE = 'late: unique key ' || key || ' is held by task ' || held.task_id,
      ERRCODE = '23505', CONSTRAINT = 'late_unique_key';
    END IF;
    RETURN held.task_id;
  END LOOP;
  RAISE EXCEPTION USING MESSAGE = 'late: unique key ' || key || ' kept changing hands',
      ERRCODE = '40001';
END
$$;

CREATE FUNCTION late_enqueue(
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
  IF left(late_enqueue.name, 5) = 'late.' THEN
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
  IF headers IS NOT NULL AND (jsonb_typeof(headers) <> 'object' OR octet_length(headers::text) > 8192
     OR EXISTS (SELECT 1 FROM jsonb_each(headers) e WHERE jsonb_typeof(e.value) <> 'string')) THEN
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
  SELECT * INTO wide FROM late_lane l WHERE l.name = lane;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING MESSAGE = 'late: there is no lane ' || coalesce(lane, '(null)'),
      ERRCODE = '22023';
  END IF;
  shard := wide.first_shard + CASE WHEN ordering_key IS NULL
    THEN floor(random() * wide.shards)::int ELSE late_shard(ordering_key, wide.shards) END;
  id := late_task_id(shard);
  asked := jsonb_strip_nulls(jsonb_build_object(
    'delay_us', nullif(late_micros(delay, 'delay'), 0),
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
  VALUES (shard, id, queue, late_enqueue.name, payload, headers::text,
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
