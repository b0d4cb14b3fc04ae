# Everything here needs only make and Python 3.11+ (name another with `make PYTHON=python3.13 ...`).
# The first target makes the project's own environment in .venv; later ones find it ready.
PYTHON ?= python3
LATE_VENV ?= .venv
export LATE_VENV
# Some images set it, and then each of the hundreds of processes of a test run compiles every module.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(LATE_VENV)/bin
RUN := @$(PYTHON) scripts/environment.py run
DEV := @$(PYTHON) scripts/environment.py dev
# Three test processes beside the one of what is shared and two of the tests that need quiet, also on
# two cores: much of their time they wait for leases, for due times and for an emulator. Those of a
# group share the servers, each test has databases of its own. One that has nothing left takes tests
# over from the others, for some take a thousand times longer.
PYTEST_WORKERS ?= 3
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: attack audit bench bench-alone bench-cache bench-channels bench-foreground bench-guard bench-migrations bench-page bench-peers bench-placement bench-reading bench-restarts bench-scale bench-shapes bench-signals bench-simulate bench-spark bench-steady bench-waking browser chaos check clean consumers contracts coverage dead-code defects demo demo-postgres demo-spanner dist docs docs-serve drills duplicates format help image lint lock mutants overload protos pythons quick sbom screenshots setup soak test test-cockroach test-long test-rest test-servers tree types

### Use

help: ## list what can be made, in groups
	@awk -F ':.*## ' '/^### / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make the environment for development and do nothing else
	$(DEV)

demo: ## run the fulfilment service on SQLite, kill a worker, check every task (ARGS="--trips FILE")
	$(RUN)
	@$(BIN)/late demo $(ARGS)

demo-postgres: ## the same on PostgreSQL (LATE_POSTGRES_URL, installed binaries or a wheel)
	$(DEV)
	@$(BIN)/late demo --store postgres $(ARGS)

demo-spanner: ## the same on Spanner's emulator (SPANNER_EMULATOR_HOST, or an installed Google Cloud SDK)
	$(DEV)
	@$(BIN)/late demo --store spanner $(ARGS)

clean: ## remove the environment, caches and demo databases
	rm -rf $(LATE_VENV) .late .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

### Check a change

quick: ## lint, types, contracts and the tests that a change touches, in 90 seconds (ARGS=--list)
	$(DEV)
	@$(BIN)/python scripts/quick.py $(ARGS)

check: lint types contracts tree duplicates dead-code test ## run what CI runs, and stop at the first that fails

lint: ## ruff: rules and format; bandit: risky calls; detect-secrets: secrets in the tree
	$(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/bandit -q -c pyproject.toml -r late spark scripts migrations examples bench
	@$(BIN)/python scripts/check_secrets.py

format: ## ruff: rewrite what can be rewritten
	$(DEV)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: ## mypy --strict over late/
	$(DEV)
	@$(BIN)/mypy

contracts: ## import contracts: values < schema < store < components < app < worker < cli
	$(DEV)
	@$(BIN)/lint-imports

tree: ## refuse hosts, machine paths, long modules, unfinished work, words to decode
	$(DEV)
	@$(BIN)/python scripts/check_tree.py
	@$(BIN)/python scripts/check_words.py

dead-code: ## refuse a name in late/ that nobody uses and pyproject.toml does not list
	$(DEV)
	@$(BIN)/vulture

duplicates: ## refuse more equal runs of lines in late/ than there were (ARGS=--list)
	$(DEV)
	@$(BIN)/python scripts/check_duplicates.py $(ARGS)

test: ## run the tests on SQLite, PostgreSQL and Spanner's emulator (ARGS="-k name" for some)
	$(DEV)
	@echo "[test] PostgreSQL: LATE_TEST_POSTGRES_URL, else installed binaries, else a wheel"
	@echo "[test] Spanner: SPANNER_EMULATOR_HOST, else an installed Google Cloud SDK, else a container"
	@$(BIN)/python scripts/run_tests.py --workers $(PYTEST_WORKERS) $(ARGS)

# Two at a time: most of them run on the emulator, which needs a processor for itself.
test-rest: ## run the long tests that `make test` leaves out, at their usual size
	$(DEV)
	@$(BIN)/python scripts/run_tests.py --only-long --workers 2 $(ARGS)

### Prove

test-long: ## run every test with branch coverage, then the storms, 5,000 worlds, all defects, 400 mutants
	$(DEV)
	@$(BIN)/python scripts/run_tests.py --long --coverage --workers $(PYTEST_WORKERS) $(ARGS)
	@$(MAKE) --no-print-directory chaos ARGS=
	@$(MAKE) --no-print-directory soak ARGS="--seeds 5000"
	@$(MAKE) --no-print-directory defects ARGS=
	@$(MAKE) --no-print-directory mutants ARGS=

coverage: ## run the tests with the branch coverage of late/, and fail below its bound (an hour)
	$(DEV)
	@$(BIN)/python scripts/run_tests.py --coverage --workers $(PYTEST_WORKERS) $(ARGS)

test-servers: ## the PostgreSQL store on versions 13 to 18 and behind PgBouncer (ARGS="18 pgbouncer" for some)
	$(DEV)
	@$(BIN)/python -m tests.versions $(ARGS)

test-cockroach: ## every suite of the stores on a node of CockroachDB, kept for docs/stores.md (URL=cockroachdb://root@host:26257/db)
	$(DEV)
	@test -n "$(URL)" || { echo "[test] URL is not set: make test-cockroach URL=cockroachdb+psycopg://root@host:26257/defaultdb"; exit 2; }
	@LATE_TEST_COCKROACH_URL='$(URL)' $(BIN)/python -m pytest tests/conformance tests/chaos tests/integration -k "cockroach and not stand_in" --keep-results $(ARGS); \
		ended=$$?; $(BIN)/python scripts/stores_doc.py && exit $$ended

soak: ## 50,000 simulated worlds; up to 480 are part of `make test` (ARGS="--seeds 1000 --minutes 30")
	$(DEV)
	@$(BIN)/python -m tests.simulator --seeds 50000 $(ARGS)

chaos: ## kill storms of the full size on every store; a tenth is part of `make test` (ARGS="-k p5")
	$(DEV)
	@LATE_TEST_CHAOS=full $(BIN)/python -m pytest -o faulthandler_timeout=0 tests/chaos -rP $(ARGS)
	@$(BIN)/python -m tests.chaos.figures

defects: ## break late in each of the known ways and see it found (ARGS="D7 clock-ahead" for some)
	$(DEV)
	@$(BIN)/python -m tests.defects $(ARGS)

drills: ## make incidents for real on PostgreSQL, and see who names each, and after how long (ARGS="target")
	$(DEV)
	@$(BIN)/python -m tests.drills $(ARGS)

attack: ## attack a running server on SQLite and PostgreSQL, and print what held (ARGS=--save, ARGS="--only contract")
	$(DEV)
	@$(BIN)/python -m tests.attack $(ARGS)

consumers: ## judge a consumer in any language (ARGS="python3 examples/python/consumer.py"; docs/clients.md)
	$(DEV)
	@$(BIN)/python -m tests.consumers $(ARGS)

mutants: ## change 400 lines of late at random, one at a time, and see it found (ARGS="--seed 2 --count 100")
	$(DEV)
	@test -x .late/mutants/tools/bin/python || { $(PYTHON) -m venv .late/mutants/tools && \
		.late/mutants/tools/bin/python -m pip install --quiet 'cosmic-ray==8.7.0'; }
	@$(BIN)/python -m tests.mutants $(ARGS)

### Measure

bench: ## drain, enqueue, latency, WAL and statements per task, with the limits of the same run; without ARGS also a row for each shape of task
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.main --postgres '{url}' $(ARGS)
	@$(if $(ARGS),,$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.shapes --postgres '{url}')

bench-shapes: ## one drain per shape of task, plain and ordinary, on SQLite and PostgreSQL (ARGS=--quick, ARGS="--parts peers")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.shapes --postgres '{url}' $(ARGS)

bench-scale: ## a drain with one to eight workers, each held to a share of a processor; as root (ARGS="--turns 1")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.scale --postgres '{url}' $(ARGS)

bench-placement: ## shards per worker, moves of a change, time: computed (ARGS="--runs 20 --large 20")
	@$(BIN)/python -m bench.placement $(ARGS)

bench-peers: ## late beside other queues on the same server, each in its own environment (ARGS="--only pg-boss")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.peers --postgres '{url}' $(ARGS)
	@$(if $(ARGS),,$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.shapes --parts peers --postgres '{url}')

bench-alone: ## larger backlogs, a million timers, two workers, gRPC: late alone (ARGS="--backlogs 10000")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.alone --postgres '{url}' $(ARGS)

bench-guard: ## instructions per task, by perf or valgrind: fails on 10 % more than was kept (ARGS=--keep); ARGS=--metrics or --shapes: what metrics and options add
	$(DEV)
	@$(BIN)/python -m bench.guard $(ARGS)

bench-signals: ## what metrics and traces cost (ARGS="--tasks 20000")
	$(DEV)
	@$(BIN)/python -m bench.signals $(ARGS)

bench-simulate: ## what `late simulate` says of a real worker behind a rate, and what it foretells of other knobs (ARGS="--seconds 60")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.simulate --postgres '{url}' $(ARGS)

bench-steady: ## a trickle, one task a transaction, on every store and beside other queues (ARGS="--seconds 20")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.steady --postgres '{url}' $(ARGS)

bench-channels: ## calls to Spanner over connections that break, with the channel pool and without, in turns (ARGS="--turns 1")
	$(DEV)
	@$(BIN)/python -m bench.channels $(ARGS)

bench-cache: ## reads through late.cache beside reads by the driver, under writers, in turns (ARGS="--rates 20 --seconds 2")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.cache --postgres '{url}' $(ARGS)

bench-foreground: ## how long foreground waits in quiet and beside a saturated background, in turns (ARGS="--turns 1")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.foreground --postgres '{url}' $(ARGS)

bench-waking: ## commit to start, with wake-ups and without, in turns (ARGS="--rates 100 --seconds 5")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.waking --postgres '{url}' $(ARGS)

bench-page: ## the page at size: statements, bytes, first paint (ARGS="--store postgres --tasks 10000000")
	$(DEV)
	@$(BIN)/python -m bench.page $(ARGS)

bench-migrations: ## what each revision locks, and for how long, on large tables of PostgreSQL (ARGS="--rows 100000")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.migrations --postgres '{url}' $(ARGS)

bench-restarts: ## deployments and kills under load: dispatch gap and takeover per shard (ARGS="--restarts 10")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.restarts --postgres '{url}' $(ARGS)

bench-spark: ## the cost report on 0.1, 1 and 10 million tasks, on DuckDB and on Spark (ARGS="--tasks 1000000")
	$(DEV)
	@PYTHONPATH=.:spark $(BIN)/python -m bench.spark.cost $(ARGS)

bench-reading: ## a live PostgreSQL store through Spark, beside JDBC (ARGS="--jar FILE")
	$(DEV)
	@PYTHONPATH=.:spark $(BIN)/python scripts/with_postgres.py \
		$(BIN)/python -m bench.spark.reading --postgres '{url}' $(ARGS)

overload: ## four troubles, with the knobs and without: does the fleet get over them? (ARGS="outage")
	$(DEV)
	@$(BIN)/python scripts/with_postgres.py $(BIN)/python -m bench.overload --postgres '{url}' $(ARGS)

### Maintain

browser: ## find Chromium for the tests of the page, or install it (by apt, as root)
	@$(PYTHON) scripts/browser.py --install

screenshots: browser ## make the pictures in docs/screens again
	$(DEV)
	@$(BIN)/python -m tests.web.screenshots $(ARGS)

protos: ## write operator.proto from the operations, and late/v1 from proto/, in an environment of its own
	$(DEV)
	@$(BIN)/python -m scripts.operator_proto
	@test -x .late/protos/bin/python || { $(PYTHON) -m venv .late/protos && \
		.late/protos/bin/python -m pip install --quiet 'grpcio-tools==1.76.*'; }
	@.late/protos/bin/python scripts/protos.py $(ARGS)

lock: ## write the lock files again (ARGS=--upgrade for newer versions)
	$(DEV)
	@$(BIN)/python scripts/lock.py $(ARGS)

dist: ## wheel and source distribution in dist/: built twice, compared, checked, installed, tried (ARGS="--python python3.13")
	$(DEV)
	@$(BIN)/python -m scripts.dist $(ARGS)

# A path or a name each. With none given it looks for python3.12 to python3.14 on PATH, then in pyenv.
pythons: ## the wheel, the README's code, the demo and the unit tests on other Pythons (PYTHONS="/path/python3.12 python3.14", ARGS="--tests 'tests/unit -k cron'")
	$(DEV)
	@$(BIN)/python -m scripts.pythons $(ARGS) $(PYTHONS)

image: ## run the steps of deploy/Dockerfile in a chroot and try both images, read-only, as their user (Linux, root)
	$(DEV)
	@$(BIN)/python -m scripts.image

docs: ## the site of the documentation in dist/site; a link that leads nowhere is an error
	@$(PYTHON) scripts/environment.py docs
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .late/docs/bin/python -m mkdocs build $(ARGS)
	@echo "[docs] in dist/site; make docs-serve shows it, with its search"

docs-serve: ## the same at 127.0.0.1:8000, made again when a page changes (ARGS="--dev-addr 127.0.0.1:8080")
	@$(PYTHON) scripts/environment.py docs
	@NO_MKDOCS_2_WARNING=1 PYTHONPATH=. .late/docs/bin/python -m mkdocs serve $(ARGS)

sbom: ## list what a build brings along: dist/late_queue-*.cdx.json (CycloneDX), docs/licences.md
	$(DEV)
	@$(BIN)/python -m scripts.sbom

audit: ## look for known vulnerabilities in the locks (ARGS=all.zip: OSV's file for PyPI, without internet)
	$(DEV)
	@$(BIN)/python -m scripts.audit $(ARGS)
