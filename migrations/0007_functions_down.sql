-- late_enqueue as it was before 0007_functions.sql.
DO $do$
DECLARE
  f constant regprocedure := (
    SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE n.nspname = current_schema() AND p.proname = 'late_enqueue');
  before constant text := pg_get_functiondef(f);
  layout constant text := $$'layout', CASE WHEN ordering_key IS NOT NULL THEN nullif(wide.version, 0) END$$;
  after constant text := replace(before, layout || $$,
    'committed_below', CASE WHEN ordering_key IS NOT NULL THEN greatest(
      CASE current_setting('transaction_isolation') WHEN 'read committed'
        THEN pg_snapshot_xmax(pg_current_snapshot())::text::bigint ELSE 9223372036854775807 END,
      pg_current_xact_id()::text::bigint + 1) END$$, layout);
BEGIN
  IF after = before THEN
    RAISE EXCEPTION 'late_enqueue is not as the migrations left it';
  END IF;
  EXECUTE after;
END
$do$;
