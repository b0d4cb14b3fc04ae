-- late_enqueue writes the lane's version into the options of a task with an ordering key. Only that
-- line is changed, whatever else the function has become.
DO $do$
DECLARE
  f constant regprocedure := (
    SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
     WHERE n.nspname = current_schema() AND p.proname = 'late_enqueue');
  before constant text := pg_get_functiondef(f);
  after constant text := replace(before, $$'unique_key', unique_key));$$,
    $$'unique_key', unique_key,
    'layout', CASE WHEN ordering_key IS NOT NULL THEN nullif(wide.version, 0) END));$$);
BEGIN
  IF after = before THEN
    RAISE EXCEPTION 'late_enqueue is not as the migrations left it';
  END IF;
  EXECUTE after;
END
$do$;
