# Each target sets up what it needs by itself in a local virtual environment.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test conformance check bench bench-spark footprint scale segments fuzz requests faults producers compaction client-faults spark-faults simulate mutate proto wheel clean setup
help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/.ready: pyproject.toml setup.py
	@echo "Setting up $(VENV): a minute or two, the first time only."
	@command -v $(PYTHON) >/dev/null || { echo "bascule needs Python 3.11 or newer: set PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[spark,dev,test]'
	@touch $@

# The kernels are rebuilt in place whenever their source changes.
$(VENV)/.kernels: $(VENV)/.ready $(wildcard src/bascule/wire/*.pyx src/bascule/wire/*.pxi)
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@if ls src/bascule/wire/_kernels*.so >/dev/null 2>&1; then touch $@; \
	else echo "No C compiler: Bascule works, many times slower. Install gcc and run make again." >&2; fi

setup: $(VENV)/.kernels ## the virtual environment, with the kernels compiled

demo: setup ## three brokers: publish, kill the leader, read back; archive, query and audit in Spark
	$(BIN)/python -m bascule.cli.demo

# A client of 2021 needs a protobuf of its own time, so it gets an environment of its own.
.venv-python-liftbridge/.ready:
	$(PYTHON) -m venv .venv-python-liftbridge
	.venv-python-liftbridge/bin/pip install --quiet 'python-liftbridge==0.0.7' 'protobuf==3.20.3' 'grpcio>=1.74'
	@touch $@

# Where the environment says so, each of the hundreds of brokers and commands would compile its modules again.
test: export PYTHONDONTWRITEBYTECODE :=
test: setup .venv-python-liftbridge/.ready ## every test, two files at a time (TESTS= JOBS=2)
	$(BIN)/python -m pytest --numprocesses $(or $(JOBS),2) --dist loadfile $(TESTS)

conformance: setup ## the protocol row by row, on one broker and on three (ADDRESS=host:port NATS=nats://host:4222 HAS="key=value ...": on a server that runs)
ifdef ADDRESS
	$(BIN)/python -m pytest tests/conformance --address $(ADDRESS) $(if $(NATS),--nats $(NATS)) $(addprefix --has ,$(HAS))
else
	$(BIN)/python -m pytest tests/conformance --brokers 1
	$(BIN)/python -m pytest tests/conformance --brokers 3
endif

check: setup ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup ## ratios against NATS JetStream, and kernels against their pure twins
	$(BIN)/python -m bench

bench-spark: setup ## Spark on streams beside Spark on Parquet files and Kafka, 2 million rows (ROWS= ROUNDS= NO_KAFKA=1 JSON=1)
	$(BIN)/python -m bench.spark $(if $(ROWS),--rows $(ROWS)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(NO_KAFKA),--no-kafka) $(if $(JSON),--json)

footprint: setup ## memory, idle CPU and start times of a broker with a log of 2 GB
	$(BIN)/python -m bench.footprint

scale: setup ## a stream of 1 000 partitions on three brokers: time, idle CPU, memory, what holds the event loop (PARTITIONS=)
	$(BIN)/python -m bench.scale $(if $(PARTITIONS),--partitions $(PARTITIONS))

segments: setup ## a partition of ten thousand segments beside one of ten: start, memory, look-up by time, deletion beside publishes
	$(BIN)/python -m bench.segments

fuzz: setup ## ten minutes of fuzzing, kernels with sanitizers too (SECONDS=600 SEED=)
	$(BIN)/python -m tools.fuzz --seconds $(or $(SECONDS),600) $(if $(SEED),--seed $(SEED))

requests: setup ## ten minutes of random requests to every method of a broker under load (SECONDS=600 BROKERS=1 or 3 SEED=)
	$(BIN)/python -m tools.requests --seconds $(or $(SECONDS),600) --brokers $(or $(BROKERS),1) $(if $(SEED),--seed $(SEED))

faults: setup ## kills, pauses, cuts and wiped disks of three real brokers under load (ONLY= ROUNDS= JSON=1 OTHER=/path/of/another/bascule)
	$(BIN)/python -m tools.faults $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(OTHER),--other $(OTHER)) $(if $(JSON),--json)

producers: setup ## each message once: a producer that repeats, 1,000 beside it, 20 leaders killed (KILLS= OTHERS= MESSAGES=)
	$(BIN)/python -m tools.producers $(if $(KILLS),--kills $(KILLS)) $(if $(OTHERS),--others $(OTHERS)) $(if $(MESSAGES),--messages $(MESSAGES))

compaction: setup ## 5 million keyed records compacted beside publishing, then 50 kills amid it (RECORDS= KEYS= KILLS= SEED=)
	$(BIN)/python -m tools.compaction $(if $(RECORDS),--records $(RECORDS)) $(if $(KEYS),--keys $(KEYS)) $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED))

client-faults: setup ## the Python client while leaders, replicas, coordinators and members of a group are killed, paused, partitioned (ROUNDS=10 ONLY=)
	$(BIN)/python -m tools.clientfaults $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(ONLY),--only "$(ONLY)")

spark-faults: setup ## Spark queries and an archive while drivers, workers and leaders are killed: each row once (KILLS=30 SEED=1 ONLY=queries or archive)
	$(if $(filter archive,$(ONLY)),,$(BIN)/python -m tools.spark_faults --kills $(or $(KILLS),30) --seed $(or $(SEED),1))
	$(if $(filter queries,$(ONLY)),,$(BIN)/python -m tools.archive_faults --kills $(or $(KILLS),30) --seed $(or $(SEED),1))

simulate: setup ## seeded runs of brokers and clients under faults (SEEDS=100 FIRST_SEED=1 BROKERS= FAULTS= BUG= JOBS=1 ALL=1: go on after a violation)
	$(BIN)/python -m bascule.sim --seeds $(or $(SEEDS),100) --first-seed $(or $(FIRST_SEED),1) --jobs $(or $(JOBS),1) $(if $(BROKERS),--brokers $(BROKERS)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(BUG),--bug $(BUG)) $(if $(ALL),--all)

mutate: setup ## plants every bug of the catalogue and sees whether anything finds it (ONLY= SEEDS=200 FIRST_SEED= JOBS=2)
	$(BIN)/python -m tools.mutate --jobs $(or $(JOBS),2) $(if $(ONLY),--only $(ONLY)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST_SEED),--first-seed $(FIRST_SEED))

# Generated with an older compiler on purpose: the code then runs on every protobuf from 6.31 on.
proto: ## generate the Python code of the .proto files
	$(PYTHON) -m venv .venv-proto
	.venv-proto/bin/pip install --quiet 'grpcio-tools==1.76.0'
	.venv-proto/bin/python tools/generate.py

# Without a compiler this fails: a wheel with the slow kernels would be a trap.
wheel: setup ## the wheel of a release, with compiled kernels
	BASCULE_REQUIRE_KERNELS=1 $(BIN)/pip wheel --quiet --no-deps --wheel-dir dist .

clean: ## remove everything that was built
	rm -rf $(VENV) .venv-* build dist src/*.egg-info .bin .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src -name '*.so' -delete
	find src -name '_kernels*.c' -delete
