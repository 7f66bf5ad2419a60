# Everything runs in its own virtual environment, .venv; nothing outside this folder is touched.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# real data for the tests that can use it, where it lies beside the checkout
export IRMTV_DATA ?= $(wildcard $(abspath ../shared/data))
# two processes with one thread each; tests move to the process that is free; compiled files are kept, since many
# tests start Python again
JOBS ?= 2
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

.PHONY: help demo check fast test lint graph slow-list docs-numbers docs docs-check \
  gallery-last release-check kills bench bench-compare fuzz clean
help:
	@echo "make demo          the paper's main result: set up $(VENV), then about a minute of training"
	@echo "make check         set up $(VENV), then ruff, mypy and the fast tests: two minutes, before each commit"
	@echo "make test          set up $(VENV), then ruff, mypy and all tests: a quarter of an hour"
	@echo "make graph         what each package imports, and what is against the rules of the layers"
	@echo "make docs-numbers  run the commands behind tables in docs, the quick ones (ALL=1: all, hours)"
	@echo "make docs          the documentation site, in docs/_build/html (the gallery's examples run: two minutes)"
	@echo "make docs-check    make docs, then links, text alternatives, spelling and every page in a browser"
	@echo "make release-check everything that a release needs, but the tests: docs/installation.md"
	@echo "make slow-list     all tests, then tests/slow.txt anew: which ones make check leaves out"
	@echo "make kills         1,000 sweeps killed, 1,000 bits flipped, 300 commands stopped: nothing is lost (half an hour)"
	@echo "make bench         speed, as ratios, beside those that are wanted (AXES=1: time and memory along rows, ... too)"
	@echo "make bench-compare what changed since the last committed line of benchmarks/results.jsonl"
	@echo "make fuzz          40,000 mutated model files, tables and specs, about an hour (ARGS='--count 500': fewer)"
	@echo "make clean         remove $(VENV) and caches"

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

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# side by side, since mypy has one process only
check: $(VENV)/installed-dev
	@$(MAKE) --no-print-directory -j 2 lint fast

fast: $(VENV)/installed-dev
	$(PYTEST) -m "not slow and not browser and not data and not gpu"

test: lint
	$(PYTEST)

slow-list: $(VENV)/installed-dev
	rm -f times.txt
	$(PYTEST) --times times.txt
	$(BIN)/python tests/slow.py times.txt

graph: $(VENV)/installed
	@$(BIN)/python tests/contracts/import_graph.py

docs-numbers: $(VENV)/installed-dev
	@$(BIN)/python examples/docs_numbers.py --run $(if $(ALL),--all)

$(VENV)/installed-docs: $(VENV)/installed
	@echo "adding what the site needs to $(abspath $(VENV))"
	@$(PIP) -e '.[docs]'
	@touch $@

# warnings are errors; nothing is loaded from a network
docs: $(VENV)/installed-docs
	OMP_NUM_THREADS=1 $(BIN)/python -W error::UserWarning:numpydoc.docscrape -m sphinx -q -b html -n -W --keep-going -d docs/_build/doctrees docs docs/_build/html
	@echo "the site: $(abspath docs/_build/html/index.html)"

docs-check: docs $(VENV)/installed-dev
	$(BIN)/python docs/check.py

# the pictures of examples on real tables, which the site shows where the tables are not there
gallery-last: $(VENV)/installed-docs
	rm -rf docs/gallery
	IRMTV_KEEP_PICTURES=1 $(MAKE) --no-print-directory docs

release-check: $(VENV)/installed
	@$(PIP) -e '.[release]'
	$(BIN)/python tests/release/check.py $(ARGS)

# on Linux; KILLS="--kills 50 --flips 100 --stops 30 --seed 1" for fewer, others
kills: $(VENV)/installed-dev
	@cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m kills $(KILLS)

bench: $(VENV)/installed-dev
	@echo "speed, in $(abspath $(VENV)); a few minutes, best on an idle machine"
	@$(BIN)/python -m benchmarks.speed
	$(if $(AXES),@$(BIN)/python -m benchmarks.axes)

bench-compare: $(VENV)/installed-dev
	@$(BIN)/python -m benchmarks.record

fuzz: $(VENV)/installed-dev
	PYTHONPATH=tests $(BIN)/python -m fuzz $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
