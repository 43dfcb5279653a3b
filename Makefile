# Every target does its own set-up on a fresh machine. Environments are kept in a cache, one per requirements file.
SHELL := /bin/bash
MAIN = $$(scripts/setup main)
export PYTHONPATH := src
export OMP_WAIT_POLICY := passive
PYTEST = -m pytest -p no:cacheprovider

.PHONY: help demo test test-slow chaos test-pythons test-gpu test-kernels check bench docs doc-tables package image proofs clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: ## the whole idea on two CPU cores: train, plan, encrypt, serve, ask
	@scripts/demo

test: ## every quick test, on every engine that loads here
	@scripts/proofs --if-present
	@env=$(MAIN) && $$env/bin/python $(PYTEST) tests -m "not slow and not gpu"
	@env=$$(scripts/setup lm-eval) && $$env/bin/python $(PYTEST) tests/cli/test_lm_eval.py -m "not slow"
	@if env=$$(scripts/setup openfhe); then OMP_NUM_THREADS=2 $$env/bin/python $(PYTEST) tests/engine tests/client -m "openfhe and not slow"; \
	 else echo "OpenFHE tests skipped: it loads on Python 3.10 (glibc < 2.38) or 3.12 (glibc >= 2.38) only"; fi

test-slow: ## minutes to hours: secure rings, real weights (HEATFHE_WEIGHTS, HEATFHE_DATA), long runs
	@env=$(MAIN) && $$env/bin/python $(PYTEST) tests -m "slow and not gpu"
	@env=$$(scripts/setup lm-eval) && $$env/bin/python $(PYTEST) tests/cli/test_lm_eval.py -m slow
	@if env=$$(scripts/setup openfhe); then OMP_NUM_THREADS=2 $$env/bin/python $(PYTEST) tests/engine tests/client -m "openfhe and slow"; fi

chaos: ## a server killed, filled, closed and set to another day, 100 rounds (ROUNDS=n), as a table
	@env=$(MAIN) && $$env/bin/python runs/chaos.py --rounds $${ROUNDS:-100}

test-pythons: ## the package without torch on Python 3.10 to 3.13
	@for v in 3.10 3.11 3.12 3.13; do echo "== Python $$v"; env=$$(scripts/setup lite $$v) && $$env/bin/python $(PYTEST) tests -m "not slow and not gpu" || exit 1; done

test-gpu: ## tests that need an NVIDIA GPU; PYTHON=python3 runs them on that Python as it is
	@python=$(PYTHON); if [ -z "$$python" ]; then python=$(MAIN)/bin/python; fi; \
	 $$python $(PYTEST) -o addopts="-q -ra --durations=10" $$(grep -rl "mark.gpu" tests --include="*.py") -m gpu # plugins may be missing

test-kernels: ## the fused training kernels without a GPU, under Triton's interpreter
	@env=$$(scripts/setup triton) && TRITON_INTERPRET=1 $$env/bin/python $(PYTEST) tests/sites/test_fused.py

check: ## ruff, mypy strict, walls between rooms, docs
	@env=$(MAIN) && $$env/bin/ruff check . && $$env/bin/mypy && $$env/bin/python $(PYTEST) tests/test_rooms.py tests/test_shape.py tests/test_exports.py tests/test_import.py tests/test_docs.py tests/test_site.py

bench: ## speed, always as a ratio against a named peer in the same run
	@env=$(MAIN) && for b in bench/[a-z]*.py; do echo "== $$b"; $$env/bin/python $$b; done

docs: ## the documentation as a site in build/site; a dead link or a page outside the navigation fails
	@env=$$(scripts/setup docs) && NO_MKDOCS_2_WARNING=1 $$env/bin/python -m mkdocs build --strict && echo "open build/site/index.html; to search it too: python3 -m http.server -d build/site"

doc-tables: ## write the tables of the documentation that the code can make
	@env=$(MAIN) && $$env/bin/python scripts/doc_tables.py

package: ## dist/: an sdist and a wheel that twine accepts; VERSION=v0.1.0 refuses another version
	@scripts/package $(VERSION)

image: ## the Dockerfile's steps run without docker, and what they made tried as its user
	@env=$(MAIN) && $$env/bin/python scripts/image.py

proofs: ## check the Coq proofs
	@scripts/proofs

clean: ## remove what was generated in this folder
	rm -rf build dist out runs/out .pytest_cache .mypy_cache .ruff_cache .hypothesis
