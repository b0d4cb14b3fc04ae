"""These tests need a real PgBouncer: `make test-servers` runs them, `make test` leaves them out."""

import os

from tests.servers import BOUNCER_VARIABLE

collect_ignore = [] if BOUNCER_VARIABLE in os.environ else ["test_pgbouncer.py"]
