# Every way to work on Hutch. `make` alone lists them; ARGS goes to the program behind the target.

SHELL := /bin/bash
export PATH := $(PATH):/usr/sbin:/sbin
PYTHON := .venv/bin/python
# With it, each of the thousands of processes that the tests start would compile the whole package anew.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup dashboard wheel screenshots setup-python setup-bench pin demo test all-tests test-fast test-rootless check bench prove prove-rootless

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' Makefile | expand -t 16

setup: ## system packages (as root), .venv and the dashboard; quick when all are there
	@tools/setup.sh

dashboard: ## build the web page that `hutch serve` shows (needs Node)
	@tools/dashboard.sh

wheel: setup ## dist/*.whl, with the built dashboard
	$(PYTHON) -m hatchling build -t wheel

screenshots: setup ## a picture of every page of the dashboard, in build/screenshots
	$(PYTHON) tools/screenshots.py $(ARGS)

pin: ## renew tools/constraints.txt, the exact releases that setup installs
	@tools/pin.sh

demo: setup ## a box, a command, a file, a limit: the short tour
	$(PYTHON) examples/demo.py $(ARGS)

check: setup ## linters, types, import contracts, file lengths, links of documents
	@tools/check.sh

test: setup ## check, every test as this user, then (as root) the brief run as an ordinary user
	@tools/count-cpu.sh $(MAKE) --no-print-directory all-tests

all-tests: check
	$(PYTHON) tools/leftovers.py tools/test.sh $(ARGS)
	tools/test-rootless.sh --brief

setup-python: ## .venv only, without system packages
	@tools/setup.sh --python

test-fast: setup-python ## the tests that need only Python packages and the native engine, in a minute of CPU time
	@tools/count-cpu.sh tools/test-fast.sh $(ARGS)

test-rootless: setup ## every test as an ordinary user
	tools/test-rootless.sh $(ARGS)

setup-bench: ## the engines that bench measures beside (as root): Docker, Podman, bubblewrap, gVisor
	@tools/setup-bench.sh

bench: setup setup-bench ## measure, e.g. make bench ARGS="--help"
	$(PYTHON) -m bench $(ARGS)

prove: setup ## the tests marked proof, with full counts
	tools/prove.sh $(ARGS)

prove-rootless: setup ## the same as an ordinary user
	tools/test-rootless.sh --prove $(ARGS)
