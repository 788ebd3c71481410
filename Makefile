# Short names for what people do here. `make help` lists them.
.DEFAULT_GOAL := help
MINKE := target/release/minke
export CARGO_TERM_PROGRESS_WHEN ?= auto

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: ## Install what is missing, build, start a cluster with a demo, print the kubeconfig
	@tools/install run
	@cargo build --release --locked -p minke
	@$(MINKE) up --demo

down: ## Stop the cluster; PURGE=1 also removes its data
	@test -x $(MINKE) || cargo build --release --locked -p minke
	@$(MINKE) down $(if $(filter 1,$(PURGE)),--purge)

build: ## Build the release binary
	cargo build --release --locked -p minke

test: ## Everything that is checked before a change lands
	@tools/install test
	@tools/test all

test-fast: ## Format, lints and unit tests only
	@tools/test fast

test-reference: ## Compare with the published Kubernetes API; needs REFERENCE (default ../shared/k8s-1.35)
	@tools/test reference

sim: ## Play the control plane under simulated time and faults: SEEDS=1000, FIRST=0
	cargo run --release --locked --quiet -p minke-sim --bin sim -- $(or $(SEEDS),1000) $(or $(FIRST),0)

sim-disk: ## Play the embedded store on a disk that loses, tears, refuses and lies: SEEDS=10000, FIRST=0
	MINKE_DISK_SEEDS=$(or $(SEEDS),10000) MINKE_DISK_FIRST=$(or $(FIRST),0) \
	cargo test --release --locked --quiet -p minke-store --lib power_cut -- --nocapture

fuzz: ## Fuzz with coverage (needs cargo-fuzz): TARGET=json (all without), SECONDS=60
	@tools/fuzz $(or $(SECONDS),60) $(TARGET)

soak: ## Churn on a real cluster of two nodes whose processes are killed, ending in a table: MINUTES=30
	@tools/install test
	cargo build --release --locked --quiet -p minke
	cargo build --locked --quiet --workspace --bin soak
	@MINKE=$(abspath $(MINKE)) target/debug/soak $(or $(MINUTES),30)

dist: ## Static binary, Debian package, tarball, offline bundle, SBOM and checksums, into target/dist
	@tools/dist

bench: ## Figures as ratios, on this machine
	@tools/bench

fmt: ## Format the code
	cargo fmt --all

.PHONY: help up down build test test-fast test-reference sim sim-disk fuzz soak dist bench fmt
