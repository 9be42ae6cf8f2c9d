SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
INSTALLED := .venv/.installed
CLASSES := .venv/spark-classes.jsa
BOTH_CORES := --numprocesses 2 --dist loadfile --no-loadscope-reorder
WITH_JAVA = java=$$(tools/find-java.sh) && JAVA_HOME="$$java"
SHELL_SCRIPTS := .ci/run $(wildcard tools/*.sh)

.PHONY: help
help: ## this list
	@awk 'BEGIN { FS = ":.*## " } \
	  /^##@ / { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z][a-z-]*:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

##@ Begin
.PHONY: setup demo demo-kafka
setup: $(INSTALLED) ## make .venv from the pinned requirements; everything below does this by itself

demo: $(INSTALLED) ## run a pipeline, kill it, restart it, and see that nothing is lost or doubled
	@$(WITH_JAVA) $(BIN)/python examples/demo.py

demo-kafka: $(INSTALLED) ## the same on orders that are appended live to a Kafka broker, which it fetches; ARGS=…
	@$(WITH_JAVA) $(BIN)/python examples/demo_kafka.py $(ARGS)

$(INSTALLED): requirements/build.txt requirements/dev.txt pyproject.toml tools/setup.sh
	@tools/setup.sh

# A hundred sessions of a test run start in half the time; without it they all work as well.
$(CLASSES): $(INSTALLED)
	@echo "writing an archive of Spark's classes, from which tests start their JVMs"
	@$(WITH_JAVA) $(BIN)/python tools/spark_classes.py $@ > /dev/null 2>&1 || echo "none was written: they load them"

##@ Check
.PHONY: check fmt lint types imports
check: $(INSTALLED) ## everything that a change must pass; the tests come last
	@$(MAKE) --jobs 2 --output-sync lint types imports $(CLASSES)
	@$(MAKE) test

fmt: $(INSTALLED) ## format the code and mend what can be mended
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

lint: $(INSTALLED) ## ruff; shellcheck too, where it is installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@if command -v shellcheck > /dev/null; then shellcheck $(SHELL_SCRIPTS); fi

types: $(INSTALLED) ## mypy --strict on the library, pyright on its public surface
	@$(BIN)/mypy
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

imports: $(INSTALLED) ## who may import whom
	@PYTHONPATH=tests $(BIN)/lint-imports --no-logo --no-cache

##@ Test
.PHONY: test test-core test-long test-nightly test-versions mission torture replay exhaust planted mutants coverage-simulation torture-windows torture-files \
        torture-kafka torture-kafka-out torture-kinesis torture-receivers ways newcomer messages
test: $(INSTALLED) $(CLASSES) ## what each change must pass, in ten minutes; TESTS="tests/spark -k join" runs some
	@$(WITH_JAVA) tools/test.sh $(or $(TESTS),$(BOTH_CORES) -m "not long and not nightly" tests)

test-long: $(INSTALLED) $(CLASSES) ## more breadth of what `make test` has proved once; CI runs both
	@$(WITH_JAVA) tools/test.sh $(or $(TESTS),$(BOTH_CORES) -m "long and not nightly" tests)

test-nightly: $(INSTALLED) $(CLASSES) ## the rest, without a limit: before an issue is closed
	@$(WITH_JAVA) tools/test.sh $(or $(TESTS),$(BOTH_CORES) -m nightly tests)
	@$(if $(TESTS),,$(MAKE) test-versions)

test-versions: $(INSTALLED) ## a core of the tests on each older Spark that penstock supports; ARGS="-k kept"
	@$(WITH_JAVA) tools/test-versions.sh $(ARGS)

test-core: $(INSTALLED) ## the tests that need no JVM: seconds
	@tools/test.sh -m "not spark and not crash and not integration" $(or $(TESTS),tests)

mission: $(INSTALLED) ## which tests prove which behaviour, and the gaps; REQUIRE=D1,D4 fails if one of these has none
	@$(BIN)/python tools/mission.py $(if $(REQUIRE),--require $(REQUIRE))

torture: $(INSTALLED) ## SEEDS=10000 stories of crashes, zombies and lost answers from FIRST=1 on, simulated; WATCHED=1, RECEIVED=1
	@cd tests && ../$(BIN)/python -m simulation.run torture $(or $(SEEDS),1000) --first $(or $(FIRST),1) $(if $(WATCHED),--watched) $(if $(RECEIVED),--received)

replay: $(INSTALLED) ## tell the story of one simulated SEED, step by step; WATCHED=1, RECEIVED=1 if it was found so
	@cd tests && ../$(BIN)/python -m simulation.run replay $(SEED) $(if $(WATCHED),--watched) $(if $(RECEIVED),--received)

exhaust: $(INSTALLED) ## every schedule of small simulated worlds; larger ones for SECONDS_EACH=60
	@cd tests && ../$(BIN)/python -m simulation.exhaustive $(or $(SECONDS_EACH),60)

planted: $(INSTALLED) ## take each rule away and see who notices; BUGS="L3 R4" tries some, BUGS=--core-only their tests
	@$(WITH_JAVA) cd tests && ../$(BIN)/python -m planted.run $(BUGS)

mutants: $(INSTALLED) $(CLASSES) ## a hundred small bugs in the data side, and the test that finds each; ARGS="state-034 …" tries some
	@cd tests && java=$$(../tools/find-java.sh) && JAVA_HOME="$$java" ../$(BIN)/python -m mutants.run $(ARGS)

coverage-simulation: $(INSTALLED) ## branches of runtime/ and checkpoint/ that SEEDS=1000 stories take; fails below 95 %
	@cd tests && COVERAGE_FILE=/tmp/.coverage-simulation ../$(BIN)/python -m simulation.coverage $(or $(SEEDS),1000)

torture-windows: $(INSTALLED) ## STORIES=50 of batches, merges and crashes for each kind of window, against SQL
	@$(WITH_JAVA) STORIES=$(or $(STORIES),50) tools/test.sh tests/spark/test_window_kinds.py

torture-files: $(INSTALLED) ## kill a files-to-files job again and again and compare what it published; ARGS=…
	@$(WITH_JAVA) $(BIN)/python tests/crash/torture_files.py $(ARGS)

torture-receivers: $(INSTALLED) ## the same to a job that receives rows, acknowledged ones against published ones; ARGS=…
	@$(WITH_JAVA) $(BIN)/python tests/crash/torture_receivers.py $(ARGS)

torture-kafka: $(INSTALLED) ## the same to a Kafka-to-files job, and to its broker; ARGS=…
	@$(WITH_JAVA) $(BIN)/python tests/crash/torture_kafka.py $(ARGS)

torture-kafka-out: $(INSTALLED) ## the same to a Kafka-to-Kafka job, as readers of committed records see it; ARGS=…
	@$(WITH_JAVA) $(BIN)/python tests/crash/torture_kafka_out.py $(ARGS)

torture-kinesis: $(INSTALLED) ## the same to a Kinesis-to-files job, under reshards, with the KCL as its successor; ARGS=…
	@$(WITH_JAVA) $(BIN)/python tests/crash/torture_kinesis.py $(ARGS)

ways: $(INSTALLED) ## trace a row, a barrier, a restart and a savepoint through a running job, against docs/architecture.md
	@$(WITH_JAVA) $(BIN)/python tools/ways.py

messages: $(INSTALLED) ## every error message and help text of the package, to be read in one go
	@$(BIN)/python tools/messages.py $(ARGS)

newcomer: $(INSTALLED) ## a new user's first minutes, from the wheel on; ARGS=--download gets all by pip; ARGS="--python 3.13"
	@$(WITH_JAVA) PYTHONPATH=tests $(BIN)/python tests/crash/newcomer.py $(ARGS)

##@ Measure
.PHONY: bench-windows bench-checkpoint bench-kafka bench-kafka-out bench-latency bench-files bench-receivers bench-start bench-kinesis soak
bench-windows: $(INSTALLED) ## windows against Structured Streaming and a plain Spark job, side by side; ARGS=…
	@$(WITH_JAVA) $(BIN)/python bench/windows.py $(ARGS)

bench-checkpoint: $(INSTALLED) ## what checkpoints of 1 GB of state cost and how soon it is back; ARGS=…
	@$(WITH_JAVA) $(BIN)/python bench/checkpoint.py $(ARGS)

bench-kafka: $(INSTALLED) ## a backlog on a real broker, counted in windows, against Structured Streaming; ARGS=…
	@$(WITH_JAVA) $(BIN)/python bench/kafka.py $(ARGS)

bench-kafka-out: $(INSTALLED) ## from a topic to a topic, live and a backlog, against Structured Streaming; ARGS=…
	@$(WITH_JAVA) $(BIN)/python bench/kafka_out.py $(ARGS)

bench-latency: $(INSTALLED) ## from append to sink on a live topic, against Structured Streaming; ARGS=…
	@$(WITH_JAVA) $(BIN)/python bench/latency.py $(ARGS)

bench-files: $(INSTALLED) ## many small files and one big one, against Structured Streaming's file source; ARGS=…
	@$(WITH_JAVA) $(BIN)/python bench/files.py $(ARGS)

bench-receivers: $(INSTALLED) ## rows that clients POST, and lines of a socket against Structured Streaming; ARGS=…
	@$(WITH_JAVA) $(BIN)/python bench/receivers.py $(ARGS)

bench-start: $(INSTALLED) ## a command on ten rows from its start to its end, against spark-submit of the same job; ARGS=…
	@$(WITH_JAVA) $(BIN)/python bench/start.py $(ARGS)

bench-kinesis: $(INSTALLED) ## a stream of an emulator to a sink, against a bare loop of GetRecords; ARGS=…
	@$(WITH_JAVA) $(BIN)/python bench/kinesis.py $(ARGS)

soak: $(INSTALLED) ## MINUTES=10 of windows that open and close: does anything grow?
	@$(WITH_JAVA) $(BIN)/python bench/soak.py --minutes $(or $(MINUTES),10) $(ARGS)

##@ Keep
.PHONY: docs lock clean
docs: .venv/.docs-installed ## build/site: these pages and a reference made of docstrings, with search; ARGS=serve shows them
	@NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs $(or $(ARGS),build --quiet)

.venv/.docs-installed: $(INSTALLED) requirements/docs.txt
	@$(BIN)/python -m venv --clear .venv/docs
	@.venv/docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

lock: ## pin requirements/*.in anew, for every supported Python
	@tools/lock.sh

clean: ## remove what the other targets made, .venv too
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
