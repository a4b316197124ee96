# `make quickstart` and `make test` are all that a fresh machine with Python 3.11, pip, make and a C++ compiler needs.
PYTHON ?= python3
BIN := .venv/bin
# How many modules of tests run at once: three for two cores, because ranks wait for each other much of the time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 3 / 2) --maxprocesses 6

.PHONY: help install quickstart check test test-docs slurm test-slurm faults long browser picture map perf perf-probe perf-compare perf-gate perf-best perf-plan perf-plan-search perf-stragglers soak fuzz wheelhouse gpu gpu-offline cuda-dry clean

# Python then keeps the bytecode of bench, which the tests start thousands of times.
unexport PYTHONDONTWRITEBYTECODE

help: ## Show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: .venv/installed .venv/extensions ## Make the environment in .venv, with what DeepSpeed compiles

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

quickstart: install ## Measure four backends on two ranks and print the table
	$(BIN)/bench run matrices/quickstart.yaml

check: install ## Format, lint, types, and the arrows between rooms
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

SIDE_BY_SIDE = -n $(WORKERS) --dist loadscope --no-loadscope-reorder

test: install ## All tests but faults, documents, and those that need a GPU, torch for CUDA or minutes of training
	$(BIN)/pytest --ignore=tests/faults -m 'not gpu and not dry and not long and not jobs and not docs' $(SIDE_BY_SIDE)

test-docs: install ## Run the commands of README and guides, and compare what they print
	$(BIN)/pytest tests/guides -m 'docs and not long' -n $(WORKERS) --dist loadgroup

# Without the packages, `make test` skips these tests and says so.
slurm: ## Get Slurm, for the tests on a cluster of two nodes on this machine (Debian, as root)
	command -v slurmctld && command -v slurmd && command -v srun && command -v munged || { apt-get update && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge; }

test-slurm: install slurm ## The tests on a real Slurm
	$(BIN)/pytest tests/slurm $(SIDE_BY_SIDE)

# Tests marked `alone` come last, one at a time. Both calls are made, even if the first one fails. With FAULTS_TABLE,
# one process writes the table.
faults: install ## Plant every fault there is a test for; FAULTS_TABLE=reports/faults.md writes their outcomes
ifdef FAULTS_TABLE
	$(BIN)/pytest tests/faults -m 'not long'
else
	$(BIN)/pytest tests/faults -m 'not alone and not long' $(SIDE_BY_SIDE); \
	first=$$?; \
	$(BIN)/pytest tests/faults -m 'alone and not long' && exit $$first
endif

# DeepSpeed's helper for a CPU, compiled once before several ranks at a time need it.
.venv/extensions: .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -c 'from bench.runner.preload import build_extensions; build_extensions(["ShareMemCommBuilder"])'
	touch $@

long: install ## The tests that train for minutes
	$(BIN)/pytest -m long

browser: ## Get Chromium, for the test that opens the page of the report (Debian, as root)
	apt-get update
	apt-get install -y --no-install-recommends chromium

picture: install ## Take the README's picture of the published report; needs `make browser`
	$(BIN)/python tests/e2e/picture.py

perf: install ## What bench itself costs, as ratios from interleaved runs
	$(BIN)/python tests/perf/attempt_cost.py
	$(BIN)/python tests/perf/help_cost.py
	$(BIN)/python tests/perf/search_cost.py
	$(BIN)/python tests/perf/report_cost.py
	$(BIN)/python tests/perf/observe_cost.py

perf-probe: install ## What a certified batch costs against a loop of launches
	$(BIN)/python tests/perf/probe_cost.py

perf-compare: install ## Whether the words of a report can be believed on this machine (an hour or two)
	$(BIN)/python tests/perf/compare_trials.py --table reports/compare_trials.md

perf-gate: install ## Whether the gate of bench compare finds slow steps on a busy machine (ten minutes)
	$(BIN)/python tests/perf/gate_trials.py --table reports/gate_trials.md

perf-best: install ## Whether bench run --best finds the fastest setting of simulated grids (ten minutes)
	$(BIN)/python tests/perf/best_trials.py --table reports/best_trials.md

perf-plan: install ## Whether bench plan predicts memory and time, with every backend on two CPU ranks (an hour)
	$(BIN)/bench calibrate
	for matrix in tests/perf/plans/*.yaml; do run=reports/$$(basename $$matrix .yaml); \
	  $(BIN)/bench run $$matrix --out $$run --rerun all; $(BIN)/bench plan --check $$run; $(BIN)/bench report $$run; done
	$(BIN)/python tests/perf/plan_table.py

perf-plan-search: install ## What a plan is worth to a search: ten cells with a memory limit (a quarter of an hour)
	MALLOC_MMAP_THRESHOLD_=65536 $(BIN)/python tests/perf/plan_search.py --log plan_search.jsonl --table plan_search.md

perf-stragglers: install ## Whether bench names planted stragglers on this machine, and no others
	$(BIN)/python tests/perf/straggler_trials.py --table reports/straggler_trials.md

soak: install ## Whether a thousand attempts on one pair of rank servers leave them as they were (half an hour)
	$(BIN)/python tests/perf/soak.py

fuzz: install ## Ten thousand mutated matrices and command lines through a dry run (minutes)
	BENCH_FUZZ_SAMPLES=10000 $(BIN)/pytest tests/cli/test_fuzz.py

wheelhouse: $(if $(PYTHON_VERSION),install) ## Collect the wheels that an offline machine needs: PYTHON_VERSION=3.12, MACHINE=aarch64, HAVE='torch ...'
	@test -n "$(PYTHON_VERSION)" || { echo "make wheelhouse: name the Python of the offline machine: PYTHON_VERSION=3.12"; exit 2; }
	$(BIN)/python tests/gpu/wheelhouse.py $(PYTHON_VERSION:%=--python %) $(MACHINE:%=--machine %) $(if $(HAVE),--have $(HAVE))

# OFFLINE=1 makes no environment: it adds to that of PYTHON what wheelhouse/ has and it lacks, and runs the checks there.
GPU_PYTHON = $(if $(filter 1,$(OFFLINE)),"$(PYTHON)",$(BIN)/python)
PARTS = doctor backends oom probe steps compile limits rest

gpu: $(if $(filter 1,$(OFFLINE)),gpu-offline,install) ## The checks that need a CUDA device, in reports/gpu-<GPUs>.md; PART=oom runs one part
	@$(foreach part,$(filter-out $(PARTS),$(PART)),echo "make gpu: PART=$(part) is none of $(PARTS)"; exit 2;)
	$(GPU_PYTHON) -m pytest $(or $(PART:%=tests/gpu/test_%.py),tests/gpu)

gpu-offline:
	@"$(PYTHON)" -c 'import sys; sys.exit("make gpu: PYTHON is older than 3.11" if sys.version_info < (3, 11) else 0)'
	@test -d wheelhouse || { echo "make gpu: wheelhouse/ is missing: run make wheelhouse where there is a network, and copy it here"; exit 2; }
	"$(PYTHON)" -m pip install --quiet --no-index -f wheelhouse --editable '.[tests]'

cuda-dry: .venv-cuda/installed ## Rank servers with torch's CUDA build over made-up drivers: may they fork?
	.venv-cuda/bin/python -m pytest -m dry tests/e2e/test_cuda_dry.py

# An environment of its own, 5.4 GB, with the pinned versions. `===` takes no build with a local label, such as +cpu.
.venv-cuda/installed: pyproject.toml constraints.txt
	test -x .venv-cuda/bin/python || $(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[tests]' \
		"torch===$$(sed -n 's/^torch==//p' constraints.txt)"
	touch $@

map: install ## Draw the rooms of bench and who imports whom, from the code
	$(BIN)/python tests/house/draw.py

clean: ## Remove the environment and caches; reports stay
	rm -rf .venv .venv-cuda .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist *.egg-info
