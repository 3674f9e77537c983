# Everything here creates .venv on the first call and finds it ready on the next.
#   TORCH_BACKEND=cpu|auto|cu130|...   torch's build (default: cpu, or auto beside an NVIDIA driver)
#   PIP_FIND_LINKS=DIRECTORY           wheels that go before the package index
#   PYTHON=python3.12                  the Python to create .venv with
#   JOBS=2                             how many stages `make repro` and `make figures` run at once
#   PRESET=laptop                      what `make repro` reproduces: the README's results
#   PORT=5000 PREFECT_PORT=4200        the first ports that `make dashboards` tries

PYTHON ?= python3
JOBS ?= 2
PRESET := laptop
PORT ?= 5000
PREFECT_PORT ?= 4200
.DEFAULT_GOAL := help
.PHONY: help install repro figures test crash fuzz lint bench dashboards docs lock clean

in_environment := PATH="$(CURDIR)/.venv/bin:$$PATH"

help:  ## show this list
	@sed -n 's/^\([a-z]*\):[^#]*## /  make \1	/p' Makefile

install:  ## create or refresh .venv from requirements.lock
	@$(PYTHON) scripts/bootstrap.py

repro: install  ## reproduce the README's results: data, training, evaluation, report
	@$(in_environment) python -m pipelines.reproduce --preset $(PRESET) --jobs $(JOBS)

figures: install  ## run the presets behind the notebooks, and store what these show; ONLY="length layers" for some
	@$(in_environment) python scripts/make_figures.py --jobs $(JOBS) $(ONLY)

test: install  ## check style, types and the import contract, then run the tests
	@failed=0; $(MAKE) --no-print-directory lint || failed=1; \
	$(in_environment) pytest -n auto --dist loadfile --no-loadscope-reorder || failed=1; exit $$failed

crash: install  ## kill the whole pipeline KILLS=100 times at random moments, and compare what it leaves
	@$(in_environment) python -m tests.crash --kills $(or $(KILLS),100)

fuzz: install  ## ask stages for CASES=10000 wrong parameter files, and with every file damaged
	@$(in_environment) python -m tests.fuzz --cases $(or $(CASES),10000)

lint: install  ## check style, types and the import contract
	@failed=0; export $(in_environment); \
	for check in 'ruff check' 'ruff format --check' 'pyright' 'lint-imports --no-logo'; do \
		$$check || { echo "failed: $$check"; failed=1; }; \
	done; exit $$failed

bench: install  ## run every benchmark; QUICK=1 for the short form
	@failed=0; export $(in_environment); \
	for file in $$(grep -l '^if __name__ == "__main__"' benchmarks/*.py); do \
		name=$$(basename $$file .py); echo "== benchmarks.$$name"; \
		form=$(if $(QUICK),--quick); \
		if [ $$name = state_tracking ] && [ -z '$(QUICK)' ]; then echo "what was measured last; to measure takes hours"; form=--kept; fi; \
		if [ $$name = gpu ] && ! command -v nvidia-smi >/dev/null; then echo "skipped: there is no NVIDIA driver"; continue; fi; \
		python -m benchmarks.$$name $$form || { echo "failed: $$name"; failed=1; }; \
	done; exit $$failed

dashboards: install  ## show flows in Prefect and runs in MLflow on localhost; Ctrl-C stops both
	@$(in_environment) exec python scripts/dashboards.py --port $(PORT) --prefect-port $(PREFECT_PORT) --invoker $$PPID

docs: install  ## build the documentation as a site: site/index.html
	@export $(in_environment); python scripts/notebook_pages.py && zensical build --strict

lock: install  ## compile requirements.lock from pyproject.toml
	@$(PYTHON) scripts/bootstrap.py --lock

clean:  ## remove .venv, caches and the site; data, models and results stay
	rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache .cache site docs/notebooks benchmarks/clones .figures
	find . -name __pycache__ -not -path './.dvc/*' -prune -exec rm -rf {} +
