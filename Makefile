# Everything runs in its own virtual environment, .venv; nothing outside this folder is touched.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# real data for the tests that can use it, where it lies beside the checkout
export IRMTV_DATA ?= $(wildcard $(abspath ../shared/data))

.PHONY: help demo test graph bench clean
help:
	@echo "make demo   the paper's main result: set up $(VENV), then about a minute of training"
	@echo "make test   set up $(VENV), then ruff, mypy and pytest"
	@echo "make graph  what each package imports, and what is against the rules of the layers"
	@echo "make bench  speed, as ratios against a textbook implementation"
	@echo "make clean  remove $(VENV) and caches"

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "irmtv needs Python 3.11 or newer; say: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "setting up the virtual environment $(abspath $(VENV)) (once; a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "adding what the checks need to $(abspath $(VENV))"
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(VENV)/installed
	@echo "the demo, in $(abspath $(VENV)): seven methods, ten repetitions each, on the hardest simulation setting"
	@$(BIN)/python examples/demo.py

test: $(VENV)/installed-dev
	@echo "all checks, in $(abspath $(VENV)): ruff, mypy, pytest"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

graph:
	@$(PYTHON) tests/contracts/import_graph.py

bench: $(VENV)/installed-dev
	@echo "speed, in $(abspath $(VENV)); a few minutes, best on an idle machine"
	@$(BIN)/python -m benchmarks.speed

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
