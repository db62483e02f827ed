# One command a need; `make help` lists them. Every target sets up what it uses.
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Without cached bytecode, every test worker and every command compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

$(STAMP): pyproject.toml .ci/prerequisites
	bash .ci/prerequisites python
	python3 -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade pip
	# setuptools warns of editable installations as such, at length.
	PYTHONWARNINGS=ignore $(PY) -m pip install --quiet --constraint .ci/constraints.txt --editable '.[dev]'
	touch $(STAMP)

.PHONY: setup
setup: $(STAMP) ## a virtual environment with everything in it

.PHONY: check
check: $(STAMP) ## style, types and the direction of imports
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

.PHONY: render
render: $(STAMP) ## write the manifests of deploy/ that are made from code and chart
	bash .ci/prerequisites go
	$(PY) deploy/manifests/render.py
	$(PY) deploy/helm/render.py

SUPPLY ?= .supply
.PHONY: lock
lock: ## write the locks with hashes: of the image, of its build and of the tools for that
	bash .ci/supply lock $(SUPPLY)

.PHONY: sbom
sbom: ## bill of materials (CycloneDX) and licence texts of the image, in dist/
	bash .ci/supply sbom $(SUPPLY)

TAG ?= optsched:0.1.0
.PHONY: image
image: ## the container image: TAG=name BASE_DIGEST=sha256:…
	bash .ci/image '$(TAG)' '$(BASE_DIGEST)'

.PHONY: bench-session
bench-session: $(STAMP) ## Problem → Decisions: greedy, configurations, node by node
	$(PY) -m pytest bench/test_session.py bench/test_victims.py bench/test_consolidation.py bench/test_unlike_pods.py bench/test_reservations.py -q -p no:cacheprovider --benchmark-columns=min,median,max,rounds

.PHONY: bench-growth
bench-growth: $(STAMP) ## session time at half and at full size: shapes, queues, resources, priorities
	$(PY) -m bench.growth

.PHONY: bench-quality
bench-quality: $(STAMP) ## mixed clusters: the live budget next to the pipeline and to 20 times the budget
	$(PY) -m bench.quality

.PHONY: bench-simulate
bench-simulate: $(STAMP) ## 100 000 jobs on 1 000 nodes, replayed with the greedy model
	$(PY) -m bench.simulate

.PHONY: bench-backlog
bench-backlog: $(STAMP) ## a replay with 1 000 gangs that wait beside the same replay with none
	$(PY) -m bench.backlog

.PHONY: bench-compare
bench-compare: $(STAMP) ## a grid of replays on one worker and on two, beside a loop that only counts
	$(PY) -m bench.compare

.PHONY: bench-cluster
bench-cluster: $(STAMP) ## the live scheduler on a real API server with 1 000 KWOK nodes
	bash .ci/prerequisites go
	$(PY) -m bench.cluster

.PHONY: bench-jobs
bench-jobs: $(STAMP) ## jobs from submission to bound pods, controllers and scheduler together
	bash .ci/prerequisites go
	$(PY) -m bench.jobs

.PHONY: bench-admission
bench-admission: $(STAMP) ## reviews of jobs beside a webhook that does nothing
	bash .ci/prerequisites go
	$(PY) -m bench.admission

.PHONY: bench-lifecycles
bench-lifecycles: $(STAMP) ## memory of scheduler and controllers over COUNT=M pods (50 000), API server in memory
	$(PY) -m bench.lifecycles --count $(or $(COUNT),50000) $(if $(TRACE),--trace)

.PHONY: bench-lifecycles-http
bench-lifecycles-http: $(STAMP) ## the same as processes of their own, over HTTP
	$(PY) -m bench.lifecycles_http --count $(or $(COUNT),50000)

.PHONY: bench-recovery
bench-recovery: $(STAMP) ## kills, restarts and silent watches: how soon gangs are bound again, TRIES=N of each
	bash .ci/prerequisites go
	$(PY) -m bench.recovery --tries $(or $(TRIES),5)

.PHONY: bench-crater
bench-crater: $(STAMP) ## the five shapes of Crater's jobs, from kubectl apply to Running
	bash .ci/prerequisites go
	$(PY) -m bench.crater

.PHONY: bench-requests
bench-requests: $(STAMP) ## requests of scheduler and controllers per bound pod, and how late events are
	bash .ci/prerequisites go
	$(PY) -m bench.requests

.PHONY: site
site: $(STAMP) ## the documentation as a site with search, in dist/site
	$(VENV)/bin/sphinx-build -q -n -W --keep-going -c .ci/site . dist/site

.PHONY: demo
demo: $(STAMP) ## the gang experiment on a Kubernetes control plane of this machine
	bash .ci/prerequisites go || true
	$(VENV)/bin/optsched demo

.PHONY: test
test: ## everything that is tested
	$(MAKE) --jobs=2 check pages
	$(MAKE) unit
	$(MAKE) e2e

.PHONY: unit
unit: $(STAMP) ## tests that need no cluster
	$(PY) -m pytest --numprocesses=auto --dist=worksteal --ignore=tests/e2e --ignore=tests/pages

.PHONY: pages
pages: $(STAMP) ## tests that look at reports in Chromium
	bash .ci/prerequisites chromium
	$(PY) -m pytest -m pages tests/pages

.PHONY: e2e
e2e: $(STAMP) ## tests on a real API server
	bash .ci/prerequisites go
	$(PY) -m pytest -m e2e --numprocesses=3 --dist=loadgroup tests/e2e

.PHONY: e2e-tenants
e2e-tenants: $(STAMP) ## two tenants on a real API server: what one tries against the other
	bash .ci/prerequisites go
	$(PY) -m pytest -m e2e tests/e2e/test_tenants.py tests/e2e/test_tenant_attacks.py tests/e2e/test_request_flood.py

.PHONY: research
research: $(STAMP) ## the published figures, on all of the data
	bash .ci/prerequisites go
	OPTSCHED_RESEARCH=full $(PY) -m pytest -m research --numprocesses=auto --dist=worksteal --durations=10 -rP

.PHONY: instances
instances: $(STAMP) ## the files of instances/, made again from their seeds
	$(PY) -m bench.instances make --all

.PHONY: instances-verify
instances-verify: $(STAMP) ## checksums of all instances, and a proof of every best-known plan
	$(PY) -m bench.instances verify

.PHONY: instances-solve
instances-solve: $(STAMP) ## every instance within 60 s on two cores, against what is known
	$(PY) -m bench.instances solve

.PHONY: instances-update
instances-update: $(STAMP) ## the same, and what is better is kept
	$(PY) -m bench.instances solve --update

.PHONY: research-packing
research-packing: $(STAMP) ## all instances of vector bin packing with a known optimum (hours; goes on where it stopped)
	$(PY) -m bench.packing

.PHONY: oracle
oracle: $(STAMP) ## random clusters against properties of every plan: SEED=N COUNT=M FAMILY=mixed, or SEED=N ONLY=k to replay
	nice -n 5 $(PY) -m tests.oracle $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(if $(ONLY),--only $(ONLY)) $(if $(FAMILY),--family $(FAMILY)) $(if $(JOBS),--jobs $(JOBS)) $(if $(SECONDS_MOST),--seconds $(SECONDS_MOST))

.PHONY: fuzz
fuzz: $(STAMP) ## mutated inputs for every reader: SEED=N COUNT=M, or SEED=N PARSER=name ONLY=k to replay
	nice -n 5 $(PY) -m tests.fuzz $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(if $(PARSER),--parser '$(PARSER)') $(if $(ONLY),--only $(ONLY)) $(if $(JOBS),--jobs $(JOBS))

.PHONY: e2e-faults
e2e-faults: $(STAMP) ## schedules of faults on a real API server: SEEDS=M of them from SEED=N on, each for SECONDS_MOST=S
	bash .ci/prerequisites go
	$(PY) -m tests.faults --seed $(or $(SEED),1) --count $(or $(SEEDS),1) --seconds $(or $(SECONDS_MOST),30)

.PHONY: soak
soak: $(STAMP) ## memory over COUNT=M pods (50 000); gangs for SECONDS_MOST=S (an hour) under faults, and without
	bash .ci/prerequisites go
	$(PY) -m bench.soak --count $(or $(COUNT),50000)
	$(MAKE) e2e-faults SECONDS_MOST=$(or $(SECONDS_MOST),3600)
	$(PY) -m tests.faults --calm --seed $(or $(SEED),1) --seconds $(or $(SECONDS_MOST),3600)

.PHONY: oracle-live
oracle-live: $(STAMP) ## sessions with a clock on mixed clusters, with evictions: SEED=N COUNT=M, or SEED=N ONLY=k
	nice -n 5 $(PY) -m tests.oracle.live $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) $(if $(ONLY),--only $(ONLY)) $(if $(SECONDS_MOST),--seconds $(SECONDS_MOST))

.PHONY: nightly
nightly: $(STAMP) ## the tests marked nightly too, twenty times the examples, a million mutated inputs, faults of 40 seeds, memory, an hour of the oracle
	OPTSCHED_EFFORT=20 $(PY) -m pytest --numprocesses=auto --dist=worksteal
	$(MAKE) sbom
	$(MAKE) e2e-faults SEEDS=40
	$(MAKE) bench-lifecycles
	$(MAKE) bench-lifecycles-http
	$(MAKE) fuzz COUNT=1000000 JOBS=2
	$(MAKE) oracle COUNT=1000000 SECONDS_MOST=2400 JOBS=2
	$(MAKE) oracle FAMILY=mixed COUNT=1000000 SECONDS_MOST=1200 JOBS=2
	$(MAKE) oracle-live COUNT=1000000 SECONDS_MOST=1800
