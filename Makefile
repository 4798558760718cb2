# What a developer types. Each target describes what it does; the work is in scripts/.
#
#   make demo            set up, build, start a cluster, run a real search, show what came out
#   make test            set up and run every test that needs no special hardware
#   make build           PROFILE=dev (default) or PROFILE=release
#   make lint            formatting, clippy, rustdoc, house rules, ruff; warnings are errors
#   make e2e-<lane>      postgres, docker, podman, client, kills, hostile, torch, gpu, kubernetes, node: skipped, and counted, where equipment is missing
#   make chaos           faults against real clusters, the short form; the long one: chaos/run.sh --size hand
#   make clean

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

PROFILE ?= dev
ifeq ($(PROFILE),dev)
profile_directory := debug
else
profile_directory := $(PROFILE)
endif

target_directory := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
built := $(target_directory)/$(profile_directory)
# The supervisor runs inside images of users: static, so that it needs nothing of them.
static_target := $(shell uname -m)-unknown-linux-musl
static_supervisor := $(target_directory)/$(static_target)/$(profile_directory)/det-supervisor

export DET_BIN := $(built)/det
export DET_SUPERVISOR := $(static_supervisor)
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: setup setup-run build demo test lint clean chaos engine e2e-postgres e2e-docker e2e-podman e2e-client e2e-kills e2e-hostile e2e-torch e2e-gpu e2e-kubernetes e2e-node

## Installs what is missing for building and testing, and prints what that is.
setup:
	scripts/setup build python-dev

setup-run:
	scripts/setup build python

## Builds det and, beside it, the static det-supervisor.
build:
	cargo build --locked --profile $(PROFILE) -p det-cli --bin det
	cargo build --locked --profile $(PROFILE) -p det-supervisor --target $(static_target)
	scripts/put-supervisor $(static_supervisor) $(built)/det-supervisor

demo: setup-run build
	scripts/demo

test: setup build
	scripts/run-tests rust failpoints python core

## The agent's own tests with a Docker engine.
engine: setup build
	scripts/run-tests engine

# The Docker lane also runs the agent's own tests with an engine, that of Kubernetes the merge of pods with an API server.
e2e-postgres e2e-docker e2e-podman e2e-client e2e-kills e2e-hostile e2e-torch e2e-gpu e2e-kubernetes e2e-node: e2e-%: setup build
	scripts/run-tests $* $(if $(filter docker,$*),engine) $(if $(filter kubernetes,$*),pods)

# The simulated agents of the scenario `storm` are det-bench's.
chaos: setup build
	cargo build --locked --profile $(PROFILE) -p det-bench
	scripts/run-tests chaos

lint: setup
	scripts/lint

clean:
	cargo clean
	rm -rf .venv .cache
