# Two targets do everything on a machine with Python 3.11+, git and make: `make demo`, `make test`.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$python >/dev/null 2>&1 \
	&& $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
# Processes of tests: on two cores one waits while others work.
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCAL := $(VENV)/.local
SITE := .venv-docs
RELEASE := .venv-release
RELEASE_READY := $(RELEASE)/.ready

.PHONY: demo demo-local docs test long test-local check client typos bench agent-dojo quality tokens conformance-mcp crash workers fuzz search mutants update-expected lock release audit clean

demo: $(READY)  ## Run the quickstart recipe on the sample folder, offline.
	$(BIN)/python -m minions run recipes/quickstart.yaml --no-store --trust -m scripted/quickstart

demo-local: $(LOCAL)  ## Run a recipe with a real model on this machine; fetches it first, 130 MB. No key.
	$(BIN)/python recipes/local_demo.py

docs: $(SITE)/.ready  ## Build the documentation site with the reference into out/site; a dead link ends it.
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python docs/build_site.py

test: $(READY)  ## Run the whole test suite; no network, no key.
	$(BIN)/python -m pytest -q -n $(WORKERS)

long: $(READY)  ## Run what the suite leaves out: tests that kill again and again, or measure, for many seconds.
	$(BIN)/python -m pytest -q -n $(WORKERS) -m long

test-local: $(LOCAL)  ## Run the tests that need a real model.
	MINIONS_TEST_LOCAL=1 $(BIN)/python -m pytest -q tests/local

check: $(READY)  ## Format, lint, types, import layers.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

crash: $(READY)  ## Kill processes 1,000 times, and 200 times on PostgreSQL, and plans at every fact; 2,000 runs against faulty servers. Writes benchmarks/crash.md.
	MINIONS_CRASH_KILLS=1000 MINIONS_CRASH_POSTGRES_KILLS=200 MINIONS_CRASH_ROLLBACKS=200 MINIONS_CRASH_STRIDE=1 MINIONS_CHAOS_SEEDS=2000 \
		MINIONS_CRASH_PAGE=benchmarks/crash.md $(BIN)/python -m pytest -q -s -m "" -o faulthandler_timeout=1200 tests/crash tests/chaos tests/engine/test_plan_steps.py

workers: $(READY)  ## Kill workers 100 times and restart the database twice while they execute 1,000 runs; writes benchmarks/workers.md.
	MINIONS_WORKER_RUNS=1000 MINIONS_WORKERS=4 MINIONS_WORKER_KILLS=100 MINIONS_WORKER_RESTARTS=2 MINIONS_WORKER_PAGE=benchmarks/workers.md \
		$(BIN)/python -m pytest -q -s -m "" -o faulthandler_timeout=2400 tests/workers -k outlive

update-expected: $(READY)  ## Write stored outputs and generated pages again; read the difference before you commit it.
	MINIONS_UPDATE_EXPECTED=1 $(BIN)/python -m pytest -q tests/recipe/test_bad_recipes.py tests/costs
	$(BIN)/python docs/generate_recipes.py
	$(BIN)/python docs/generate_api.py
	$(BIN)/python docs/generate_acceptance.py
	$(BIN)/python docs/generate_errors.py
	$(BIN)/python docs/generate_skill.py
	$(BIN)/python docs/generate_completion.py
	$(BIN)/python docs/generate_contributing.py
	$(BIN)/python docs/generate_extending.py

mutants: $(READY)  ## Change the guards line by line; show what no test notices. MUTANTS="--module engine/services/budget.py" for one.
	PYTHONPATH=tests $(BIN)/python -m mutation $(MUTANTS)

CONFORMANCE ?= /tmp/mcp-conformance
conformance-mcp: $(READY)  ## Run the official conformance suite of MCP; needs npm and Node 22, says how to get it.
	@test -d $(CONFORMANCE)/node_modules/@modelcontextprotocol/conformance || { echo "The suite is not there. Get it, and a Node that it takes, by" \
		"\`npm install --prefix $(CONFORMANCE) @modelcontextprotocol/conformance@0.1.16 node@22\`." >&2; exit 1; }
	MINIONS_MCP_CONFORMANCE=$(CONFORMANCE) $(BIN)/python -m pytest -q -n $(WORKERS) tests/interfaces/test_mcp_conformance.py

client: $(READY)  ## Compile the client in TypeScript, and try it at a server; needs Node, gets the compiler by npm.
	npm install --silent --no-save --prefix out/typescript 'typescript@>=5.6 <8'
	$(BIN)/python -m pytest -q tests/server/test_typescript_client.py

typos: $(READY)  ## Misspell every name of every recipe; writes docs/design/typos.md.
	PYTHONPATH=.:tests $(BIN)/python -m typos

FUZZ_SECONDS ?= 10
fuzz: $(READY)  ## Give readers of strangers' data inputs that nobody thought of; FUZZ_SECONDS=60 for each target.
	PYTHONPATH=.:tests $(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS)

search: $(READY)  ## Try 2,000 examples where the suite tries fifty: all tests of what holds for any value.
	$(BIN)/python -m pytest -q -n $(WORKERS) -m hypothesis --hypothesis-profile=search -o faulthandler_timeout=2400

bench: $(READY)  ## Measure, as ratios within one run.
	$(BIN)/python benchmarks/run.py

tokens: $(READY)  ## Count the tokens of plans against one agent; needs the group `bench`, says how to get it.
	$(BIN)/python -m benchmarks.tokens
	$(BIN)/python -m benchmarks.plan_reuse

# The locks hold versions and hashes for every platform and no address, so that any index serves. `requirements.lock` is what production installs, with the versions that
# were tested; of it is left out what a dependency wants for parts that are not used (release/not-installed.txt), which is why it is installed with --no-deps.
COMPILE := $(RELEASE)/bin/uv pip compile --generate-hashes --no-emit-index-url --universal --python-version 3.11 --no-annotate --no-header
EXTRAS := --extra dbos --extra mcp --extra otel --extra postgres --extra sandbox --extra server --extra sign --extra encrypt
lock: $(RELEASE_READY)  ## Choose new versions for all locks.
	$(COMPILE) pyproject.toml --group dev $(EXTRAS) --extra lsp --extra parquet --extra pdf -o requirements-dev.lock
	$(COMPILE) pyproject.toml $(EXTRAS) --constraint requirements-dev.lock --excludes release/not-installed.txt -o requirements.lock
	$(COMPILE) --group docs -o requirements-docs.lock
	$(COMPILE) --group release -o requirements-release.lock
	echo 'xllamacpp>=2026.4,<2027' | $(COMPILE) - --no-deps -o requirements-local.lock
	printf 'pydantic-ai-slim[openai]>=2\nlangchain-openai>=1.1\ninstructor>=1.13\n' | $(COMPILE) - -o requirements-quality.lock
	echo 'bfcl-eval>=2026.3' | $(COMPILE) --no-deps - >> requirements-quality.lock
	printf 'agentdojo==0.1.35\ndeepdiff\norderly-set\nemail-validator\ndnspython\ncachebox\n' | $(COMPILE) - --no-deps -o requirements-agent-dojo.lock

# The suites without the clients of model providers, which they name as requirements.
$(VENV)/.agent-dojo: $(READY) requirements-agent-dojo.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-agent-dojo.lock
	@touch $@

agent-dojo: $(VENV)/.agent-dojo  ## Play the injections of AgentDojo, with the model as the attacker; writes benchmarks/agent_dojo.md.
	$(BIN)/python -m benchmarks.agent_dojo

# The libraries of others and the questions of BFCL: in an environment of their own, so that no version is decided by another.
QUALITY := .venv-quality
$(QUALITY)/.ready: requirements-quality.lock
	$(PYTHON) -m venv $(QUALITY)
	$(QUALITY)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-quality.lock
	@touch $@

quality: $(READY) $(QUALITY)/.ready $(if $(QUALITY_BASE_URL),,$(LOCAL))  ## Ask a model what has known answers, by Minions and by others; writes docs/quality.md. QUALITY_TASKS=5 for a few of each.
	$(BIN)/python -m benchmarks.quality

release: $(RELEASE_READY)  ## Build a release into out/release, twice: wheel, source, lock, SBOM, hashes, provenance. Uploads nothing.
	$(RELEASE)/bin/python -m release.build_release $(RELEASE_OPTIONS)

audit: $(RELEASE_READY)  ## Look for known flaws of what the locks name; needs the network, and says so where there is none.
	$(RELEASE)/bin/python release/audit_locks.py

$(RELEASE_READY): requirements-release.lock
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-release.lock
	@touch $@

$(READY): requirements-dev.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed and was not found." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q minions
	@touch $@

$(LOCAL): $(READY) requirements-local.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r requirements-local.lock
	$(BIN)/python -m minions models pull --trust
	@touch $@

# An environment of its own: the site's packages and those of the tests shall not decide each other's versions.
$(SITE)/.ready: requirements-docs.lock
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	@touch $@

clean:
	rm -rf $(VENV) $(SITE) $(RELEASE) $(QUALITY) out build dist .mypy_cache .ruff_cache .hypothesis .import_linter_cache
