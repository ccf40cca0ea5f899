# All targets need only Python 3.11 or later: the first call sets up .venv.
.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint docs bench bench-check bench-rows bench-growth clean
.DELETE_ON_ERROR:

BIN := .venv/bin
INSTALLED := .venv/.installed
PYTHONS := $(PYTHON) python3.11 python3 python
BENCHMARKS := $(filter-out _% growth,$(notdir $(basename $(sort $(wildcard benchmarks/*.py)))))
ROWS := build/bench/rows.jsonl
export PIP_ROOT_USER_ACTION := ignore
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED)  ## a robot and a cube: when does the action matter? Writes runs/demo-robot/report.html
	@OMP_NUM_THREADS=1 $(BIN)/butfor demo
	@test -f runs/demo-robot/report.html || { echo "The demo ended without its report." >&2; exit 1; }

test: lint  ## lint, types and all tests but the long ones
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-all: lint  ## the same with the long tests
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m ""

lint: $(INSTALLED)  ## ruff and mypy
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "Run: $(BIN)/ruff format" >&2; exit 1; }
	@$(BIN)/python -m mypy

docs: $(INSTALLED)  ## build the docs, docs/_build/html/index.html
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "Open $(CURDIR)/docs/_build/html/index.html in a browser."

bench: $(INSTALLED)  ## run every benchmark in turn; ends with one table
	@$(MAKE) --no-print-directory bench-rows NAMES="$(BENCHMARKS)"
	@$(BIN)/python tools/bench_table.py $(ROWS)

bench-check: $(INSTALLED)  ## run those with a committed ratio; fail if one is worse by more than the noise
	@$(MAKE) --no-print-directory bench-rows NAMES="fetch_stepping model_step scoring training"
	@$(BIN)/python tools/bench_table.py $(ROWS) --check

bench-growth: $(INSTALLED)  ## time and memory as the data grow tenfold four times; writes build/bench/growth.svg
	@mkdir -p $(dir $(ROWS))
	@$(BIN)/python -m benchmarks.growth --out build/bench/growth

bench-rows: $(INSTALLED)
	@mkdir -p $(dir $(ROWS)); rm -f $(ROWS)
	@set -e; for name in $(NAMES); do echo "== benchmarks.$$name"; BENCH_ROWS=$(ROWS) $(BIN)/python -m benchmarks.$$name; done

clean:  ## remove .venv, build output and caches; runs/ stays
	@rm -rf .venv build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src tests benchmarks tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# A virtual environment that cannot run pip (half made, or its Python is gone) is replaced.
$(INSTALLED): pyproject.toml constraints.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  for python in $(PYTHONS); do \
	    "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && found="$$python" && break; \
	  done; \
	  test -n "$$found" || { echo "butfor needs Python 3.11 or later; tried: $(PYTHONS)." >&2; exit 1; }; \
	  echo "Making .venv with $$("$$found" --version)."; \
	  "$$found" -m venv --clear .venv; \
	}
	@echo "Installing butfor and what it needs into .venv; this takes a minute or two."
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[data,dev,docs,fetch,figures,minari,ray,sb3,tensorboard,video]'
	@touch $@
