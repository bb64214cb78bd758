# make run    the main job: a KVM host with guests in the lab, the same workloads before and after
# make test   all tests: unit, property, and on real kernels in the lab
# make bench  EEVDF, Tandem and other sched_ext schedulers side by side
.DEFAULT_GOAL := help
SHELL := /bin/bash
TARGET := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET)/x86_64-unknown-linux-gnu/release
TANDEM := $(BIN)/tandem
export TANDEM_BIN_DIR := $(abspath $(BIN))

.PHONY: help deps build run test unit lint bench soak evidence clean

help: ## This list
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/' | expand -t 12

deps: ## Install what building and the lab need (apt)
	@scripts/install-deps.sh

build: deps ## Build the static binaries
	cargo build --release --locked --bins

run: build ## Main job: before/after tables from a guest on an overcommitted host, and from such a host
	@mkdir -p $(TARGET)/tandem
	$(TANDEM) lab run demo --json $(TARGET)/tandem/run.json
	$(TANDEM) lab run demo-host --json $(TARGET)/tandem/run-host.json

test: build ## All tests
	@scripts/test.sh

unit: deps ## Unit and property tests only
	cargo test --workspace --locked

lint: deps ## Formatting, lints, licences
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny --offline check licenses bans sources; fi

bench: build ## Compare with other schedulers (built from the registry; SCX_CHECKOUT=PATH adds scx_eevdf)
	@scripts/peers.sh
	@mkdir -p $(TARGET)/tandem
	$(TANDEM) lab run bench --json $(TARGET)/tandem/bench.json
	$(TANDEM) lab run bench-cost --json $(TARGET)/tandem/bench-cost.json

soak: build ## Long: ten minutes each of the tortures that make test does for 25 seconds, alone and on a host with VMs, 100,000 interleavings of each kind, 100 boots and kills of VMs under 50 loads
	$(TANDEM) sim explore --runs 100000
	@mkdir -p $(TARGET)/tandem
	@set -e; for kind in alone host; do scripts/torture.sh $$kind 600 > $(TARGET)/tandem/soak-torture-$$kind.toml; done
	@sed 's/BOOTS:-6/BOOTS:-100/' experiments/test-host-boots.toml > $(TARGET)/tandem/soak-host-boots.toml
	@failed=0; for soak in torture-alone torture-host host-boots; do \
		rm -f docs/evidence/soak-$$soak.json; \
		$(TANDEM) lab run $(TARGET)/tandem/soak-$$soak.toml --json docs/evidence/soak-$$soak.json || failed=1; done; \
		$(TANDEM) evidence --render && exit $$failed

paper: build ## The papers' experiments in the simulator: docs/RESULTS.md
	$(TANDEM) sim results docs/RESULTS.md

evidence: build ## Measure all claims (ONLY=experiment for one) and write docs/EVIDENCE.md
	$(TANDEM) evidence $(if $(ONLY),--only $(ONLY)) $(if $(GROW),--grow)

clean: ## Remove build results (the lab's downloads: tandem lab clean)
	cargo clean
