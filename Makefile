# Every target works on a fresh clone: what it needs, it makes first.
#
#   make run                     the whole stack, on this machine only
#   make run APP_PORT=9000       on another port (CONSOLE_PORT, too)
#   make run TARGET=shop:serve   another app than this one
#   make shell                   Python with the clients of the app that runs
#   make test ARGS="-k outbox"   some tests
#   make bench NAMES=fork_join   some benchmarks; DOCS=1 writes the table in docs/

PYTHON3 ?= python3
VENV := .venv
PYTHON := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
MUTANTS := $(VENV)/mutants/.installed
RIVALS := $(VENV)/rivals/.installed
BEAM := $(VENV)/beam/.installed
SDK := $(VENV)/app-engine-sdk/.installed
NODE := tests/contracts/clients/node
NODE_CLIENTS := $(NODE)/node_modules/.package-lock.json
DIAGRAMS := docs/theme/node_modules/.package-lock.json
COMPILE := $(VENV)/bin/uv pip compile --quiet --no-annotate --no-header
DAY = $(or $(SEED),$(shell date +%j))
PYTHONS := $(PYTHON) -m tests.infra.pythons
PIN := $(COMPILE) --universal --python-version 3.11 --generate-hashes $(if $(UPGRADE),--upgrade)
LOWEST_PINS := $(VENV)/lowest.in
# No exporter of traces takes both the lowest OpenTelemetry and our protobuf: tests without it are skipped.
NOT_LOWEST := $(addprefix --no-emit-package opentelemetry-,exporter-otlp-proto-http proto)

.DEFAULT_GOAL := help
.PHONY: help pythons dist setup run shell seed test beam soak mutants check audit audit-code audit-pins doctor pictures reference docs release bench profile chaos endurance clients clean fmt lint types lock

help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' \
	  $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Make .venv and install the pinned requirements

run: $(INSTALLED) ## Start everything: app on 8080, console on 8000; TARGET=module:callable
	@$(PYTHON) -m rollforward run $(TARGET) $(ARGS)

seed: $(INSTALLED) ## Fill the empty blog of the platform that runs; ARGS="--url http://..."
	@$(PYTHON) -m pipelines.blog $(ARGS)

shell: $(INSTALLED) ## Python with the clients of the app that runs; TARGET=module:callable
	@$(PYTHON) -m rollforward shell $(TARGET) $(ARGS)

# Bytecode is kept: each of the many processes that the tests start would compile it all again.
test: $(INSTALLED) ## Run the tests, a sample drawn by SEED=the day; ALL=1 with all parameters, on both emulators; ON=3.13 on another Python; SHUFFLED=1 in an order of the seed; TIMES=1 keeps how long files took
	PYTHONDONTWRITEBYTECODE= SAMPLED=$(if $(ALL),0,1) SAMPLE_SEED=$(DAY) $(if $(SHUFFLED),SHUFFLED=1) $(if $(TIMES),KEEP_TIMES=1) $(if $(ON),$$($(PYTHONS) interpreter $(ON)),$(PYTHON)) \
	  -m pytest -n 3 --max-worker-restart 0 --dist loadfile --durations 20 $(ARGS)

pythons: $(INSTALLED) ## Check types and run the fast tests for the other Pythons of this machine; ON=lowest with the lowest releases
	PYTHONDONTWRITEBYTECODE= $(PYTHONS) fast $(ON) --seed $(DAY)

soak: $(INSTALLED) ## Break calls in every way for MINUTES=30, drawn by SEED=0; MINUTES=0 plays all
	PYTHONDONTWRITEBYTECODE= SOAK=1 SOAK_MINUTES=$(or $(MINUTES),30) SOAK_SEED=$(or $(SEED),0) $(PYTHON) -m pytest -n 2 \
	  --dist load --timeout 0 -k "fault or disorder or histor or exhaustively or poison or tree or in_bulk or kills or any_schedule" $(ARGS)

# The tests' own conftest and warnings are those of the other environment.
beam: $(BEAM) ## Run the streams of the tests on Apache Beam, too, and compare; ALL=1 draws more of each kind
	$(if $(ALL),BEAM_ALL=1 )$(VENV)/beam/bin/python -m pytest -q --noconftest -o filterwarnings=default --timeout 300 tests/rollforward/streams/beam $(ARGS)

mutants: $(INSTALLED) $(MUTANTS) ## Plant bugs and see if tests find them; NAMES="outbox views" MOST=0
	$(VENV)/mutants/bin/python -m tests.infra.mutation.mutants $(if $(MOST),--most $(MOST)) $(ARGS) $(NAMES)

# On one day of seven, by the seed, the whole suite runs on the newest Python instead; the fast
# tests run on one of the others, or with the lowest releases.
check: lint types ## All that CI runs: lint, types, tests; the fast tests on another Python
	@$(MAKE) --no-print-directory pythons ON=$$($(PYTHONS) other-of-the-day --seed $(DAY))
	@$(MAKE) --no-print-directory test ON=$$($(PYTHONS) of-the-day --seed $(DAY))

audit: audit-code audit-pins ## Look for risky code and for known vulnerabilities; needs the network

# The local platform asks addresses of its own, and its SQL is made of its own words: B310 and B608.
audit-code: $(INSTALLED)
	$(VENV)/bin/bandit -q -r -ll main.py handlers pipelines models rollforward -x rollforward/local
	$(VENV)/bin/bandit -q -r -ll --skip B310,B608 rollforward/local

# What is pinned is what is installed (tests/test_audit.py), so nothing is left out.
audit-pins: $(INSTALLED)
	@$(VENV)/bin/pip-audit --strict --disable-pip --require-hashes -r requirements-dev.txt || { \
	  echo "NOT AUDITED, or vulnerable: the lines above say which. Where no advisories are within"; \
	  echo "reach, pip-audit can tell nothing, and nothing is shown to be safe."; exit 1; }

doctor: $(INSTALLED) ## Say what is missing on this machine, and the fix
	@$(PYTHON) -m rollforward doctor

pictures: $(INSTALLED) ## Take the README's pictures anew; ARGS="--all FOLDER" takes every page
	$(PYTHON) -m tests.infra.pictures $(ARGS)

reference: $(INSTALLED) ## Write the reference pages in docs/ from the code
	$(PYTHON) -m docs.reference.generate

docs: $(INSTALLED) $(DIAGRAMS) ## Build the documentation site in site/, strictly; VERSION=0.1 adds that release
	$(PYTHON) -m docs.theme.build $(if $(VERSION),--version $(VERSION)) $(ARGS)

release: $(INSTALLED) ## Check, stamp and build VERSION=0.2.0, without the upload; ARGS="--checked --tag"
	@$(PYTHON) -m docs.release $(or $(VERSION),none) $(ARGS)

bench: $(INSTALLED) $(if $(LIKE),,$(if $(filter batches% lanes% steps% streams%,$(filter-out streams_beam%,$(or $(NAMES),batches))),$(RIVALS))$(if $(filter streams_beam%,$(NAMES)), $(BEAM))) ## Measure; NAMES="a b" picks some, LIKE=cloud is as slow as the cloud, ITEMS=100000 grows so far, DOCS=1 writes the table in docs/
	$(PYTHON) -m benchmarks $(if $(LIKE),--like $(LIKE)) $(if $(ITEMS),--items $(ITEMS)) $(if $(DOCS),--docs) $(NAMES)

profile: $(INSTALLED) ## Show where time goes: NAME=insert, or any benchmark; a table, and a flame graph in .dev/profiles/
	$(PYTHON) -m benchmarks.profiling $(ARGS) $(or $(NAME),insert)

chaos: $(INSTALLED) ## Strike the stack under load of every pattern for SECONDS=60, drawn by SEED=0; ends with tables of totals and healing
	@$(PYTHON) -m benchmarks.chaos --seconds $(or $(SECONDS),60) --seed $(or $(SEED),0) $(ARGS)

endurance: $(INSTALLED) ## Half an hour of load with kills, a restart and a power cut; MINUTES=30
	$(PYTHON) -m benchmarks.endurance $(if $(MINUTES),--minutes $(MINUTES))

clients: $(SDK) $(NODE_CLIENTS) ## Install the other clients that the Cloud Tasks emulator is tested with: App Engine's SDK, and those for Node

dist: $(INSTALLED) ## Build the wheel and the sdist of the library into dist/
	@rm -rf dist
	$(PYTHON) -m hatchling build

lint: $(INSTALLED) ## Check style, spelling, the words of pages and the direction of imports
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(VENV)/bin/codespell
	PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest -q tests/test_page_words.py
	$(VENV)/bin/lint-imports

types: $(INSTALLED) ## Check types, as the lowest Python sees them
	$(PYTHON) -m mypy

fmt: $(INSTALLED) ## Format the code and mend what can be mended by machine
	$(PYTHON) -m ruff format .
	$(PYTHON) -m ruff check --fix .

clean: ## Remove local data and caches (.venv stays)
	rm -rf .dev dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis test-artifacts
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

lock: $(VENV)/bin/uv ## Pin requirements*.in into requirements*.txt; UPGRADE=1 takes newer releases
	$(PIN) -o requirements.txt requirements.in
	$(PIN) -o requirements-dev.txt requirements-dev.in
	$(PIN) -o requirements-mutants.txt requirements-mutants.in
	$(PIN) -o requirements-rivals.txt requirements-rivals.in
	$(PIN) -o requirements-beam.txt requirements-beam.in
	$(PIN) -o requirements-clients.txt requirements-clients.in
	$(COMPILE) --python-version 3.12 --no-deps --resolution lowest-direct --extra local --extra test --extra otel -o $(LOWEST_PINS) pyproject.toml
	cp requirements-dev.txt requirements-lowest.txt
	$(COMPILE) --python-version 3.12 --generate-hashes $(NOT_LOWEST) -o requirements-lowest.txt $(LOWEST_PINS) requirements-dev.in

# The stamp is newer than the requirements exactly when they are installed.
$(INSTALLED): requirements-dev.txt
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed, and $(PYTHON3) is not. Try: make $(MAKECMDGOALS) PYTHON3=python3.12"; \
	  exit 1; }
	@test -x $(PYTHON) || $(PYTHON3) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Could not make $(VENV). On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing the pinned requirements into $(VENV) ..."
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	-@$(PYTHON) -m rollforward.local.services.class_training
	@touch $@

# Optional: without npm or a network the diagrams of `make docs` are text.
$(DIAGRAMS): docs/theme/package-lock.json
	-@npm ci --silent --no-audit --no-fund --ignore-scripts --prefix docs/theme || \
	  echo "npm did not bring mermaid: diagrams are shown as text."

# Pins are made by uv, which is pinned itself: the first time the requirements are as they were.
$(VENV)/bin/uv: | $(INSTALLED)

$(MUTANTS): requirements-mutants.txt $(INSTALLED)
	$(PYTHON) -m venv $(VENV)/mutants
	@$(VENV)/mutants/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-mutants.txt
	@touch $@

$(RIVALS): requirements-rivals.txt $(INSTALLED)
	$(PYTHON) -m venv $(VENV)/rivals
	@$(VENV)/rivals/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-rivals.txt
	@touch $@

$(BEAM): requirements-beam.txt $(INSTALLED)
	$(PYTHON) -m venv $(VENV)/beam
	@$(VENV)/beam/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-beam.txt
	@touch $@

$(SDK): requirements-clients.txt $(INSTALLED)
	$(PYTHON) -m venv $(VENV)/app-engine-sdk
	@$(VENV)/app-engine-sdk/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-clients.txt
	@touch $@

# npm gives the stamp the time of the lock; without the touch it would install each time.
$(NODE_CLIENTS): $(NODE)/package-lock.json
	@command -v npm >/dev/null || { echo "The clients for Node need npm, and Node 20 or newer."; exit 1; }
	npm ci --silent --no-audit --no-fund --ignore-scripts --omit=optional --prefix $(NODE)
	@touch $@
