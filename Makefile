# Causeway's front door. `make help` lists what one can ask for.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

# rustup's usual place, for shells that have not read its profile.
export PATH := $(PATH):$(HOME)/.cargo/bin

BUILD ?= build
CARGO ?= cargo
CARGO_FLAGS ?= --locked
CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR
# Another processor's name, as rustc has it; empty for this machine's own.
CARGO_BUILD_TARGET ?=
ifneq ($(CARGO_BUILD_TARGET),)
export CARGO_BUILD_TARGET
endif
CC ?= cc
# Cargo is told of all crates that are built together each time. For one alone it compiles what that
# stands on once more, with other features or into another form.
crates := $(addprefix -p ,causeway-cli causeway-broker causeway-node causeway-verbs \
	causeway-rdmacm causeway causeway-sisci)
CAUSEWAY_CRATES ?= $(crates)
built := $(CARGO_TARGET_DIR)/$(CARGO_BUILD_TARGET)/release/

include mk/abi.mk
include mk/sisci.mk
include mk/c.mk
include mk/causeway.mk
include mk/man.mk
include mk/bench.mk
include mk/lint.mk
include mk/docs.mk
include mk/deb.mk
include mk/aarch64.mk
include mk/portable.mk
include tests/verify/verify.mk
include tests/sisci/sisci.mk
include tests/mpi/mpi.mk
include tests/ucx/ucx.mk
include tests/vm/vm.mk
include guest/tests/tests.mk
include tests/loss/loss.mk
include tests/scale/scale.mk
include tests/counts/counts.mk

.PHONY: all bins kube image libs paths headers examples test-programs setup demo test test-more \
	lint clean help

all: bins libs sisci paths headers examples man ## Build build/bin, lib, include, share and examples

bins: ## Build the programs: causeway, causewayd and causeway-noded
	$(CARGO) build --release $(CARGO_FLAGS) \
		$(CAUSEWAY_CRATES) -p causeway-cli -p causeway-broker -p causeway-node
	@mkdir -p $(BUILD)/bin
	install -m 755 $(addprefix $(built),causeway causewayd causeway-noded) $(BUILD)/bin/

# Not part of `all`: gRPC is most of what this program is made of, and few need it.
kube: ## Build the program for containers and Kubernetes: causeway-kube
	$(CARGO) build --release $(CARGO_FLAGS) -p causeway-kube
	@mkdir -p $(BUILD)/bin
	install -m 755 $(built)causeway-kube $(BUILD)/bin/

# What builds it, and on what.
ENGINE ?= podman
IMAGE_BASE ?= docker.io/library/debian:12-slim
image: all kube ## Build the container image `causeway`, by podman
	$(ENGINE) build -t causeway --build-arg BASE=$(IMAGE_BASE) \
		-f packaging/container/Dockerfile $(BUILD)

setup: ## Install the Debian packages that building and testing need (only what is missing)
	scripts/setup

demo: setup all ## Run Debian's perftest on one host and on two, end with a table
	tests/demo

# ARGS reaches tests/run: make test ARGS='--list', ARGS='--only clients -k pingpong'
test: setup all kube test-programs ## Run every test, end with one line of counts
	tests/run $(ARGS)

# ARGS reaches tests/more: make test-more ARGS='kills clients-shm', ARGS='--list'
test-more: setup all kube test-programs ## Run what takes too long for make test, shard by shard
	tests/more $(ARGS)

clean: ## Remove build/ and cargo's output
	rm -rf $(BUILD)
	$(CARGO) clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12
