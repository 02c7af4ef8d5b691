# Every target sets the machine up first: as root it installs missing packages, otherwise it names them.
.DEFAULT_GOAL := help
target = $(or $(CARGO_TARGET_DIR),target)
.PHONY: help setup fmt demo test vm-test vm-count floors bench mount-bench mount-stress fuzz crash model turns kill capi install examples \
	sqlite-tests python deb deb-test packages fio-engine fio fio-verify mkfs-sweep

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup: ## installs what the other targets need (`demo` needs less, and installs that itself)
	@scripts/setup.sh

fmt: ## formats the sources
	cargo fmt --all

demo: ## three minutes of `uext4 bench` on volumes of its own: a table, target/bench.html, target/bench.json
	@scripts/demo.sh

test: setup ## everything: style, lints, docs, tests, models, instruction counts, virtual machine (STEPS=tests,models)
	@scripts/test.sh

vm-test: setup ## the tests that need devices of the virtual machine
	@scripts/vm-test.sh

vm-count: setup ## instructions for each request, counted in the virtual machine (KERNEL=backports)
	@scripts/vm-count.sh

floors: setup ## the measured promises: instruction counts and speed ratios
	@scripts/floors.sh

bench: setup ## all scenarios, the kernel beside us (root)
	cargo run --release -p uext4-cli -- bench --kernel --html $(target)/bench.html --json $(target)/bench.json

fuzz: setup ## coverage-guided runs on hostile volumes (SECONDS_EACH=300 for each target, JOBS=2)
	@scripts/fuzz.sh

crash: setup ## long runs of power cuts, all scenarios or some (SECONDS_ALL=600, COUNT=300 states of each, SEED, JOBS=2, SCENARIO)
	@scripts/rounds.sh crash

model: setup ## long runs against the model (SECONDS_ALL=600, COUNT=60000 steps of each test, SEED, JOBS=2)
	@scripts/rounds.sh model

turns: setup ## long runs in which the kernel and we change volumes in turns (SECONDS_ALL=600, COUNT=60 seconds each, SEED, JOBS=2)
	@scripts/rounds.sh turns

kill: setup ## long runs of processes killed at work (SECONDS_ALL=600, COUNT=200 kills of each test, SEED, JOBS=2)
	@scripts/rounds.sh kill

mount-stress: setup ## a mount for a long time under mixed load, with models (root; SECONDS_ALL=600, SEED, SIZE=2G)
	@scripts/rounds.sh mount

mount-bench: setup ## mounts of uext4, fuse2fs and the kernel at the same work (root; SIZE=256m FILES=20000)
	@scripts/mount-bench.sh

capi: ## the C library: target/capi/libuext4.so, libuext4.a, uext4.h, uext4.pc
	@scripts/capi.sh

install: ## installs the C library (PREFIX=/usr/local, DESTDIR=)
	@PREFIX=$(or $(PREFIX),/usr/local) DESTDIR=$(DESTDIR) scripts/capi.sh install

examples: setup ## builds the C programs of examples/ (target/examples) and tests them (KILLS=3 of each load)
	@scripts/examples.sh

sqlite-tests: setup ## SQLite's own tests on databases inside volumes (SECONDS_EACH=300 for a file at the most)
	@scripts/sqlite-tests.sh

python: setup ## builds the Python package, installs it in target/python/venv and runs its tests
	@scripts/python.sh

deb: setup ## a Debian package of the command, its pages and completions, the C library and the fio engine
	@scripts/deb.sh

deb-test: setup ## installs that package in a bare Debian, uses it, removes it (root)
	@scripts/deb-test.sh

packages: ## the crates as they would be published, compiled by cargo from nothing
	@scripts/packages-check.sh --verify

mkfs-sweep: ## thousands of small volumes of mkfs, judged by two versions of e2fsprogs
	@programs=$$(scripts/e2fsprogs.sh) && UEXT4_E2FSPROGS=$$programs cargo test -q -p uext4 --test suite mkfs_sweep::

fio-engine: ## the engine target/fio/uext4.so for the installed fio
	@scripts/fio-engine.sh

fio: setup ## the jobs of bench/fio: uext4, the kernel's ext4 and XFS, the raw device, in turn (root; SIZE=1g ROUNDS=5 …)
	@scripts/fio.sh

fio-verify: setup ## fio writes, trims and verifies inside volumes (BYTES=10g)
	@scripts/fio-verify.sh
