# make help lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# of the tests: one more than two cores, since many tests wait
PROCESSES ?= 3

# Packages are compiled to bytecode when they are first imported. Where the environment forbids that,
# every process would compile torch again, which takes longer than importing it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install browser demo test check check-native format docs bench bench-peers bench-growth endurance clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

NATIVE := $(wildcard src/coterie/native/*.[ch]) src/coterie/native/build.py hatch_build.py

$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP) browser ## create .venv and install Coterie with what its tests need

# Chromium opens the pages of runs in the tests; elsewhere install it by hand.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then \
		apt-get update -q && apt-get install -y -q --no-install-recommends chromium && exit 0; fi; \
	echo "Chromium is missing: the tests of pages fail without it; install it"

demo: $(STAMP) ## train on the embedded digits (about a minute) and say where the results are
	$(BIN)/coterie run

test: install ## everything: format, lint, types, all tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(PROCESSES) --dist worksteal

check: install ## format, lint, types and the tests that are not slow
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(PROCESSES) --dist worksteal -m "not slow"

check-native: install ## the kernels' own tests, with the address and undefined-behaviour sanitizers watching
	$(BIN)/python tests/native/sanitize.py

format: install ## rewrite the files in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt zensical
	@touch $@

docs: $(VENV)/.docs ## build the documentation as a site in site/; a dead link, or a block that nobody runs, is an error
	$(BIN)/pytest tests/integration/test_pages.py -m "not slow"
	$(BIN)/python docs/site.py

bench: install ## ratios to a bare PyTorch loop and to FedAvg (DATA=DIR: real CIFAR-10)
	$(BIN)/python benchmarks/speed/kernels.py
	$(BIN)/python benchmarks/speed/round.py $(if $(DATA),--data $(DATA))
	$(BIN)/python benchmarks/speed/methods.py $(if $(DATA),--data $(DATA))
	$(BIN)/python benchmarks/speed/residual.py $(if $(DATA),--data $(DATA))

bench-peers: install ## Coterie beside pfl-research, Flower and a plain MOON (DATA=DIR: CIFAR-10; installs 2 GB in .venvs)
	$(BIN)/python benchmarks/speed/peers/compare.py --data $(or $(DATA),$(error DATA=DIR, the folder of CIFAR-10, is missing))

bench-growth: install ## cost of a round with 10 to 10,000 clients (DATA=DIR: real CIFAR-10)
	$(BIN)/python benchmarks/speed/growth.py $(if $(DATA),--data $(DATA))

endurance: install ## the trials behind docs/reliability.md (PART=kills N=200: one part, so many trials); resumes
	$(BIN)/python tests/endurance/run.py $(PART) $(if $(N),--trials $(N))

clean: ## remove the environment and caches
	rm -rf $(VENV) .venvs .site site .cache .mypy_cache .ruff_cache .pytest_cache
