# Every task of the project. `make demo` and `make test` set up everything they need: packages of the system by
# .ci/setup.sh, the rest in .venv; stamps there make a second run start at once. PYTHON chooses the interpreter (3.11 or
# later).

PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= .venv-bench
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# The lanes start thousands of short processes: each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# The suite runs in as many processes as tests/conftest.py says; PARALLEL= runs everything in one. A test that ends its
# process or hangs ends the run, as in one process: the others would wait for ever behind a process started in its place.
PARALLEL ?= -n logical --maxprocesses=8 --max-worker-restart=0
BENCH_ARGS ?=
FUZZ_SECONDS ?= 600
CRASH_ARGS ?=

TESTING := build $(VENV)/.test

EXTENSION_SOURCES := $(shell find mqfast -name '*.pyx' -o -name '*.pxd') $(wildcard csrc/*.c csrc/*.h mqfast/sim/*.c)
# Modules that have both an implementation in Cython and a stub: the two are compared.
STUBBED := $(shell find mqfast -name '*.pyi' | sort)
STUBBED_MODULES := $(subst /,.,$(basename $(foreach stub,$(STUBBED),$(if $(wildcard $(stub:.pyi=.pyx)),$(stub)))))
C_FILES := $(wildcard mqfast/sim/*.c csrc/*.c csrc/*.h tests/csrc/*.c tests/csrc/*.h tests/races/*.c tests/memory/*.c bench/broker/*.c bench/client/*.c)
PY_FILES := setup.py mqfast tests bench wheels csrc docs

.PHONY: demo demo-spark test test-quick sweeps debug test-debug interop ha bench-ha crash crash-images spark-kills broker-kills test-spark-versions test-spark-tables crash-kill crash-block memory coverage fuzz damage races mutants lint lint-style lint-types lint-c docs bench perf-check perf-baseline perf-ab bench-latency bench-spark bench-rivals bench-broker bench-client bench-pop bench-grpc test-reactors test-pure sim sim-mutants pictures wheel release clean \
	distclean build help

help:
	@echo "make demo    install and run the main job on a real store"
	@echo "make demo-spark   stores and a running broker in Spark: rows, SQL, streams with restarts, jobs, charts (needs Java 17)"
	@echo "make test    install and run the whole test suite"
	@echo "make test-quick   the part that needs no Java, no Spark and no process of its own: under two minutes"
	@echo "make sweeps  whole, what the suite only samples (the tests marked as sampled)"
	@echo "make interop Apache RocketMQ's own brokers, clients and tools on ours (needs Java and Maven)"
	@echo "make ha      replication: HA_KILLS kills of a master or a slave, 1 GiB under load, full disks, cut connections, partitions (needs root for some, Java for others)"
	@echo "make test-debug  a part of the suite on a build that checks its own rules (csrc/invariants.h), and that each lane stops at a broken one"
	@echo "make lint    ruff, mypy --strict, stubtest, C warnings, clang-format"
	@echo "make docs    the documentation as a site in build/site; a broken link is an error"
	@echo "make fuzz    MUTATIONS damaged small stores, larger ones for FUZZ_SECONDS, then every decoder with sanitizers"
	@echo "make crash   100,000 crash images of a simulated system, each opened and checked, then 500 kills (15 minutes)"
	@echo "make spark-kills  Spark drivers, executors and tasks killed: nothing lost, nothing repeated"
	@echo "make broker-kills   brokers, drivers, executors and tasks killed under streams from and to a broker: nothing lost, nothing repeated"
	@echo "make test-spark-versions   the core of the tests of Spark on pyspark 4.1 and 4.2 (some 1 GB; needs Java 17)"
	@echo "make test-spark-tables   the scripts of docs/spark-tables.md: Parquet, Delta Lake, Iceberg (the same environments; jars come from Maven Central)"
	@echo "make races   everything at once for RACES_SECONDS, half of it on a build with a thread sanitizer"
	@echo "make mutants break lines of the engine one by one; every one must be caught (ONLY=part of a name or file)"
	@echo "make memory  failing allocations in every public call"
	@echo "make coverage  line and branch coverage of csrc/ and mqfast/store"
	@echo "make bench   measure (pytest-benchmark)"
	@echo "make perf-check   instruction counts of the hot paths beside bench/baseline.json (needs valgrind); perf-baseline writes it"
	@echo "make perf-ab BASE=REF   two versions interleaved, ratio with its confidence interval"
	@echo "make bench-latency   paced puts beside the noise of the machine, percentiles to p99.99 and max"
	@echo "make bench-spark   reading with Spark beside its own reader of Parquet (needs Java 17)"
	@echo "make bench-rivals   other stores on the same bytes; writes docs/dev/benchmarks.md and its picture"
	@echo "make bench-broker   the broker beside Apache RocketMQ's: rate, CPU of a message, tails; then crowds of queues and connections"
	@echo "make bench-ha   replication beside RocketMQ's: rate, what a slave costs its master, SYNC_MASTER, the window of async mode"
	@echo "make bench-client   our client beside a lean C sender and the Java and Go clients, rows C1 to C15 in one table"
	@echo "make bench-pop, bench-grpc   redelivery of POP on time; calls of gRPC beside RocketMQ's local proxy"
	@echo "make test-reactors   the tests of broker, remoting and client flows with serverSelectorThreads=2"
	@echo "make test-pure   the suites of client and protocol without compiled code, against compiled brokers"
	@echo "make sim     SIM_SEEDS lives of simulated clusters with faults; sim-mutants breaks lines, which the seeds must find"
	@echo "make pictures   the console in a browser, and its pictures in docs/pictures (needs Chromium)"
	@echo "make wheel   sdist and wheel into wheels/dist/, checked in an empty environment"
	@echo "make release VERSION=0.2.0   checks everything, builds under wheels/dist/ with a report; pushes nothing"
	@echo "make clean   remove what was built; distclean also removes $(VENV), $(BENCH_VENV)"

demo: build
	$(BIN)/python -m mqfast.demo

# Pages with charts go to build/demo-spark; DEMO_SPARK_ARGS='--bytes 64m' for a short look.
demo-spark: build $(VENV)/.spark
	$(BIN)/python -m mqfast.spark.demo --charts build/demo-spark $(DEMO_SPARK_ARGS)

# With Java there, the tests of the Spark part run as well.
test: $(TESTING) $(if $(shell command -v java),$(VENV)/.spark)
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

# The tests that need no Java, no Spark and no process of their own: for the time between two edits.
test-quick: $(TESTING)
	MQFAST_QUICK=1 $(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

# Whole, what make test takes a sample of; its report names each.
sweeps: $(TESTING)
	MQFAST_WHOLE=1 $(BIN)/python -m pytest $(PARALLEL) -m sampled $(PYTEST_ARGS)

# A broker whose connections are served by reactors. tests/kit reads the variable, the product does not.
test-reactors: $(TESTING)
	MQFAST_TEST_SELECTOR_THREADS=2 $(BIN)/python -m pytest $(PARALLEL) tests/broker tests/remoting tests/client/flows $(PYTEST_ARGS)

test-pure: $(TESTING)
	MQFAST_WHOLE=1 $(BIN)/python -m pytest -q tests/pure

# Clusters on virtual time; a seed that fails is printed and fails again.
SIM_SEEDS ?= 20000
SIM := cd tests/sim && PYTHONPATH=$(CURDIR) $(abspath $(BIN))/python
sim: $(TESTING)
	set -e; for scenario in fail_over one_broker transactions orderly members dead_letters rows rows_fail_over popped_fail_over; do \
		$(SIM) -m mqfast.sim scenarios:$$scenario --seeds $(SIM_SEEDS); \
	done
	set -e; for scenario in take_overs joins late_writes same_master absent_slave transactions_fail_over available \
			disk_replaced; do \
		$(SIM) -m mqfast.sim scenarios:$$scenario --seeds $(SIM_SEEDS) --kinds ""; \
	done
	$(SIM) -m mqfast.sim scenarios:popped --seeds $(SIM_SEEDS) --kinds kill
	$(SIM) -m mqfast.sim scenarios:power_cuts --kinds power,kill --seeds $(SIM_SEEDS)

sim-mutants: $(TESTING)
	$(SIM) finder.py --seeds 200

# The console in a browser, at all sizes; the pictures of docs/ are made anew.
pictures: $(TESTING)
	MQFAST_WHOLE=1 $(BIN)/python -m pytest tests/console $(PYTEST_ARGS)

# Real brokers, clients and mqadmin of Apache RocketMQ; jars come by name from Maven Central. Part of make test as well.
interop: $(TESTING)
	MQFAST_WHOLE=1 $(BIN)/python -m pytest tests/interop tests/client/flows -o faulthandler_timeout=0 $(PYTEST_ARGS)

# Masters and slaves of ours and of Java: the long form of what make test has in short. HA_KILLS: of our pair;
# HA_JAVA_KILLS: of each of the six pairs with a broker of Java; HA_SCHEDULES: random schedules of partitions; HA_ROUNDS:
# faults beside bodies up to 4 MiB that are sent to old and new masters.
HA_KILLS ?= 200
HA_JAVA_KILLS ?= 50
HA_SCHEDULES ?= 100
HA_ROUNDS ?= 200
ha: $(TESTING)
	MQFAST_WHOLE=1 MQFAST_HA_KILLS=$(HA_KILLS) MQFAST_HA_JAVA_KILLS=$(HA_JAVA_KILLS) MQFAST_SCHEDULES=$(HA_SCHEDULES) \
		MQFAST_HISTORY_ROUNDS=$(HA_ROUNDS) $(BIN)/python \
		-m pytest tests/interop/test_promotion_java.py tests/interop/test_replicas_java.py tests/ha tests/broker/test_replicas.py \
		tests/broker/test_replica_tables.py tests/interop/test_replica_kills_java.py \
		-o faulthandler_timeout=0 $(PYTEST_ARGS)

# A copy of the tree whose engine checks its own rules (csrc/invariants.h). The long lanes run there.
DEBUG_TREE := build/debug/tree
IN_DEBUG := cd $(DEBUG_TREE) && PYTHONPATH=$(CURDIR)/$(DEBUG_TREE) $(abspath $(BIN))/python
debug: $(TESTING)
	mkdir -p $(DEBUG_TREE)
	find $(DEBUG_TREE) -type f ! -name '*.so' ! -path '$(DEBUG_TREE)/build/*' -delete
	tar -c --exclude='*.so' --exclude=__pycache__ mqfast csrc tests bench docs .ci setup.py pyproject.toml Makefile README.md LICENSE \
		| tar -x -C $(DEBUG_TREE)
	cd $(DEBUG_TREE) && MQFAST_DEBUG=1 $(abspath $(BIN))/python setup.py -q build_ext --inplace

# The rooms where the rules are, and one planted violation for each lane, which must stop it.
DEBUG_TESTS := put put_many_runs engine_put engine_get group_commit idle commit_log recovery recovery_crc queue_store transient_pool index_file reader
test-debug: debug
	$(IN_DEBUG) -m pytest tests/invariants $(wildcard $(patsubst %,tests/store/test_%.py,$(DEBUG_TESTS))) $(PYTEST_ARGS)

# Damaged stores first, on the build with checks; then every decoder on a build with sanitizers.
fuzz: damage
	tests/fuzz/run.sh $(BIN)/python $(FUZZ_SECONDS) $(FUZZ_ARGS)

# MUTATIONS of small stores (a million: about 20 minutes of two free cores), then larger ones for FUZZ_SECONDS.
MUTATIONS ?= 1000000
damage: debug
	$(IN_DEBUG) -m tests.damage --small --count $(MUTATIONS) $(DAMAGE_ARGS)
	$(IN_DEBUG) -m tests.damage --seconds $(FUZZ_SECONDS) --count 100000000 $(DAMAGE_ARGS)

# Puts, gets, tails, deletions, retention, forks and closes against each other.
RACES_SECONDS ?= 600
races: debug
	tests/races/run.sh $(abspath $(BIN))/python $(RACES_SECONDS) $(RACES_ARGS)

# What may be lost: simulated crashes first, then real kills.
crash: crash-images crash-kill

crash-images: debug
	$(IN_DEBUG) tests/crash/sweep.py $(CRASH_ARGS)

# Real processes killed at random moments, then at every system call (KILLS: how many at random).
KILLS ?= 500
crash-kill: debug
	$(IN_DEBUG) tests/kill/runs.py $(KILLS)
	$(IN_DEBUG) tests/kill/syscalls.py

# Allocation 1, 2, ... fails in every public call; MEMORY_STEP=9 takes about every ninth.
MEMORY_STEP ?= 1
memory: $(TESTING)
	$(BIN)/python tests/memory/memory_runs.py $(MEMORY_STEP)

# csrc with gcov, the Python of the store with coverage.py, in a build of its own; a table, and which goal is missed.
coverage: $(VENV)/.test $(VENV)/.spark
	$(PIP) 'coverage>=7.6'
	$(BIN)/python .ci/coverage_report.py $(COVERAGE_ARGS)

# Real filesystems filled to the last block; needs root, else it says why not.
crash-block: $(TESTING)
	MQFAST_WHOLE=1 $(BIN)/python -m pytest tests/block

# Drivers, executors and tasks of Spark killed at random moments; needs Java 17. KILLS_ARGS='--crashes 200 --rows 50000'.
spark-kills: $(TESTING) $(VENV)/.spark
	PYTHONPATH=$(CURDIR) $(BIN)/python tests/spark/kills.py $(KILLS_ARGS)

# The broker that a stream reads or writes killed at random moments, and workers, executors and drivers: five runs.
# BROKER_KILLS_ARGS='--crashes 200 --runs sink landing' for longer ones and fewer.
broker-kills: $(TESTING) $(VENV)/.spark
	PYTHONPATH=$(CURDIR):$(CURDIR)/tests/kit $(BIN)/python tests/spark/broker_kills.py $(BROKER_KILLS_ARGS)

# The core of the tests of Spark on the older releases that are supported, each in an environment of its own.
SPARK_VERSIONS ?= 4.1 4.2
SPARK_CORE := source sink staging leases auto_registration jobs_cli stream stream_queries
test-spark-versions: $(TESTING) $(patsubst %,.venv-spark-%/.installed,$(SPARK_VERSIONS))
	for version in $(SPARK_VERSIONS); do \
	  PYTHONPATH=$(CURDIR) .venv-spark-$$version/bin/python -m pytest $(patsubst %,tests/spark/test_%.py,$(SPARK_CORE)) $(PYTEST_ARGS) || exit 1; \
	done

# The scripts of docs/spark-tables.md, killed and run again: Parquet on Spark 4.3, Delta Lake on 4.2, Iceberg on 4.1.
test-spark-tables: $(TESTING) $(VENV)/.spark $(patsubst %,.venv-spark-%/.installed,$(SPARK_VERSIONS))
	for python in $(BIN) $(patsubst %,.venv-spark-%/bin,$(SPARK_VERSIONS)); do \
	  MQFAST_WHOLE=1 PYTHONPATH=$(CURDIR) $$python/python -m pytest tests/spark/test_spark_tables.py -o faulthandler_timeout=3600 $(PYTEST_ARGS) || exit 1; \
	done

.venv-spark-%/.installed: $(VENV)/.installed
	$(BIN)/python -m venv .venv-spark-$*
	.venv-spark-$*/bin/python -m pip install --quiet --disable-pip-version-check "pyspark==$*.*" pyarrow pytest hypothesis \
		numpy $$($(EXTRA) broker)
	touch $@

# Lines of the engine broken one by one, each in a copy of the last commit; every one must be caught.
ONLY ?=
mutants: $(VENV)/.test
	$(BIN)/python tests/mutation/mutants.py $(if $(ONLY),--only $(ONLY))

bench: $(TESTING)
	$(BIN)/python -m pytest bench -o python_files='bench_*.py test_*.py' --ignore-glob='*bench_spark*' --benchmark-only $(BENCH_ARGS)

# Instructions, not seconds: the same on a busy machine. Needs Debian's valgrind package and says so when it is missing.
perf-check: $(TESTING)
	$(BIN)/python bench/counts.py $(PERF_ARGS)

perf-baseline: $(TESTING)
	$(BIN)/python bench/counts.py --write

# Paced puts, by default 5 minutes of each kind at each rate: LATENCY_ARGS='--seconds 30' for a short look.
bench-latency: $(TESTING) $(BENCH_VENV)/.installed
	PYTHONPATH=$(CURDIR) $(BENCH_VENV)/bin/python bench/latency.py $(LATENCY_ARGS)

# A store of 2 GiB and the same rows as Parquet, in a temporary directory; MQFAST_BENCH_QUICK=1 for a short look.
bench-spark: $(TESTING) $(VENV)/.spark
	$(BIN)/python -m pytest bench/bench_spark*.py -o python_files='bench_*.py' --benchmark-only $(BENCH_ARGS)

# Other stores on the same bytes; whatever cannot be installed is named as left out. RIVALS_ARGS=--quick for a short look.
# The rows of `make bench` are measured first and go into the same document.
bench-rivals: $(TESTING) $(BENCH_VENV)/.rivals
	rm -f build/targets.json
	-$(if $(findstring --quick,$(RIVALS_ARGS)),MQFAST_BENCH_QUICK=1) MQFAST_BENCH_TABLE=$(CURDIR)/build/targets.json \
		$(BIN)/python -m pytest bench -q -o python_files='bench_*.py' --ignore-glob='*bench_spark*' --benchmark-only $(BENCH_ARGS)
	PYTHONPATH=$(CURDIR) $(BENCH_VENV)/bin/python bench/rivals/run.py --targets build/targets.json $(RIVALS_ARGS)

# Our broker beside the Java broker, by the same C sender: BROKER_ARGS='--rounds 2 --seconds 1' for a short look.
bench-broker: $(TESTING)
	PYTHONPATH=$(CURDIR) $(BIN)/python bench/broker/run.py $(BROKER_ARGS)
	PYTHONPATH=$(CURDIR) $(BIN)/python bench/broker/crowds.py $(BROKER_ARGS)

# Replication beside Java's: HA_ARGS='--rounds 1 --mib 64 --seconds 1' for a short look.
bench-ha: $(TESTING)
	PYTHONPATH=$(CURDIR) $(BIN)/python bench/ha/run.py $(HA_ARGS)

# Each row in a process of its own: CLIENT_ARGS='--rounds 1 --seconds 1 --rows C1 C4' for a short look; --long 10000000
# --rounds 1 --rows C14: memory over as many messages each way.
bench-client: $(TESTING)
	PYTHONPATH=$(CURDIR) $(BIN)/python bench/client/run.py $(CLIENT_ARGS)

# POP_ARGS, GRPC_ARGS: see the programs. bench-grpc needs Debian's nghttp2-client for its load.
bench-pop: $(TESTING)
	PYTHONPATH=$(CURDIR) $(BIN)/python bench/pop.py $(POP_ARGS)

bench-grpc: $(TESTING)
	PYTHONPATH=$(CURDIR) $(BIN)/python bench/grpc/run.py $(GRPC_ARGS)

# BASE and NEW are git refs, both built beside each other; NEW=. is the working tree.
BASE ?= HEAD~1
NEW ?= HEAD
perf-ab: $(TESTING)
	$(BIN)/python bench/ab.py $(BASE) $(NEW) $(PERF_ARGS)

# Three parts, so that `make -k lint` shows the faults of all of them.
lint: lint-style lint-types lint-c

lint-style: $(VENV)/.lint
	$(BIN)/ruff check $(PY_FILES)
	$(BIN)/ruff format --check $(PY_FILES)
	$(BIN)/python .ci/words.py

lint-types: build $(VENV)/.lint $(VENV)/.spark
	$(BIN)/mypy --strict
ifneq ($(STUBBED_MODULES),)
	$(BIN)/python -m mypy.stubtest $(STUBBED_MODULES) --allowlist .ci/stubtest.allow --ignore-unused-allowlist \
		--ignore-disjoint-bases --mypy-config-file pyproject.toml
endif

lint-c: $(VENV)/.lint
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	for file in csrc/*.c; do \
		$(CC) -std=c11 -Icsrc -Wall -Wextra -Wshadow -Werror -fsyntax-only $$file || exit 1; \
	done

# The pages of docs/ and others, with the API reference from stubs and docstrings; see docs/site.
docs: build $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/site/mkdocs.yml
	@echo "written: build/site/index.html"

wheel: $(VENV)/.wheel
	PYTHON=$(BIN)/python wheels/build.sh

# RELEASE_ARGS: see wheels/release.py.
release: $(VENV)/.wheel
	$(BIN)/python wheels/release.py $(VERSION) $(RELEASE_ARGS)

build: $(VENV)/.built

$(VENV)/.created:
	@PYTHON=$(PYTHON) .ci/setup.sh
	$(PYTHON) -m venv $(VENV)
	touch $@

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# What builds the extensions, then the package itself as an editable install with what its command line shows.
$(VENV)/.installed: $(VENV)/.created pyproject.toml setup.py
	@echo "installing Cython and numpy into $(VENV), then building (a minute and more)"
	$(PIP) --upgrade 'setuptools>=77' 'Cython>=3.3,<4'
	$(BIN)/python setup.py --quiet build_ext --inplace
	$(PIP) --no-build-isolation --editable '.[cli,broker]'
	touch $@

# The extras of pyproject.toml, without building the package once more.
EXTRA = $(BIN)/python .ci/extra.py

$(VENV)/.test: $(VENV)/.installed
	$(PIP) $$($(EXTRA) test broker)
	touch $@

$(VENV)/.spark: $(VENV)/.installed
	@echo "installing pyspark and pyarrow into $(VENV) (some 500 MB)"
	$(PIP) $$($(EXTRA) spark)
	touch $@

$(VENV)/.built: $(VENV)/.installed $(EXTENSION_SOURCES)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

$(VENV)/.lint: $(VENV)/.installed
	$(PIP) $$($(EXTRA) lint broker)
	touch $@

# What only benchmarks need stays out of the other environment: the rivals, their histograms, the picture.
$(BENCH_VENV)/.installed: bench/requirements.txt
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement bench/requirements.txt
	touch $@

$(BENCH_VENV)/.rivals: $(BENCH_VENV)/.installed bench/rivals/requirements.txt
	for name in $$(grep -v '^#' bench/rivals/requirements.txt); do \
		$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $$name || echo "$$name does not install: left out"; \
	done
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(PIP) $$($(EXTRA) docs)
	touch $@

$(VENV)/.wheel: $(VENV)/.created pyproject.toml
	$(PIP) $$($(EXTRA) wheel)
	touch $@

clean:
	rm -rf build wheels/dist mqfast.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find mqfast -name '*.so' -delete
	find mqfast tests bench wheels -name __pycache__ -prune -exec rm -rf {} +
	rm -f $(VENV)/.built $(VENV)/.installed

distclean: clean
	rm -rf $(VENV) $(BENCH_VENV)
