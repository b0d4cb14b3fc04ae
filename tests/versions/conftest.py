"""These tests need a real PgBouncer or libfaketime. `make test-servers` runs them, and `make test`
leaves them out."""

import os

from tests.servers import BOUNCER_VARIABLE
from tests.versions.faketime import FAKETIME_VARIABLE

NEEDS = {"test_pgbouncer.py": BOUNCER_VARIABLE, "test_shifted_clock.py": FAKETIME_VARIABLE}
collect_ignore = [file for file, variable in NEEDS.items() if variable not in os.environ]
