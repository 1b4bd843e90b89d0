# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The front door over cargo and cc.  `make` alone tells what there is.

SHELL := /bin/bash
PREFIX ?= /usr/local
DESTDIR ?=
SECONDS ?= 60
OUT ?= out
FIRST ?= $(shell date +%s)

bindir = $(DESTDIR)$(PREFIX)/bin
mandir = $(DESTDIR)$(PREFIX)/share/man/man1
completions = $(DESTDIR)$(PREFIX)/share
libdir = $(PREFIX)/lib
# mount(8) looks nowhere else for what mounts a type of file system.
sbindir = $(DESTDIR)/usr/sbin
places = -e 's,@bindir@,$(PREFIX)/bin,g' -e 's,@unitdir@,$(libdir)/systemd/system,g'
# FOREBAY_BUILT is a directory of programs that are built already: they are taken as they are.
built = $(or $(FOREBAY_BUILT),$(or $(CARGO_TARGET_DIR),target)/release)
compile = $(if $(FOREBAY_BUILT),@:,cargo build --release)
version = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml)
dkmsdir = $(DESTDIR)/usr/src/forebay-$(version)

export PATH := $(PATH):$(HOME)/.cargo/bin

.PHONY: help build demo quick check bench soak fuzz fuzz-rust vm-check vm-soak vm-bench vm-shell install install-map install-dkms deb clean

help:
	@echo 'make demo            see it: speed, kill -9 and recovery, drain (2 minutes)'
	@echo 'make check           the tests to run before a commit'
	@echo 'make check-all       all tests; PART=name: one part; STRICT=1: a skip is a failure (60 minutes)'
	@echo 'make check-parts     the parts of check-all, their steps, and how long each takes'
	@echo 'make quick           the tests to run between two edits (3 minutes at most)'
	@echo 'make build           compile the command'
	@echo 'make bench           engine, reads, recovery, slots, maps, load; see bench/index.html (10 minutes; QUICK=1: 5)'
	@echo 'make bench-peers     beside libpmemblk and the origin alone (2 minutes)'
	@echo 'make bench-apps      databases and the like on volume and mount, beside the disk alone (20 minutes, root)'
	@echo 'make bench-map-run   LMDB, Redis, Valkey and fio by forebay map-run, beside the same plain (2 minutes; root)'
	@echo 'make soak SECONDS=n  new seeds of the simulator and the crash explorer for so long'
	@echo 'make groups-soak     2000 runs of each scene of a pool written in groups, and lives of 600 s (15 minutes)'
	@echo 'make mount-model SECONDS=n  the same for the replay of a mount onto a simulated tree'
	@echo 'make mount-soak      a mount beside plain directories, 10^6 operations; 200 power cuts under databases (hours; root)'
	@echo 'make map-kills       LMDB and mapped logs by forebay map-run, 180 kills; KILLS=n: 9 n (5 minutes; root)'
	@echo 'make map-programs    real programs by forebay map-run, each killed PROGRAM_KILLS times (10), with what is on the machine (15 minutes; root)'
	@echo 'make ceph-check      a volume on an RBD image, of a cluster on this host (3 minutes; packages of Ceph)'
	@echo 'make hostile         COUNT=5000 SEED=n: mutated pools, each looked at, read and drained (1 minute)'
	@echo 'make fuzz SECONDS=n  libFuzzer on each target for so long'
	@echo 'make mutants         single changes to core, port, library: do tests find them? (hours; resumes)'
	@echo 'make coverage        branches of core that the tests take (8 minutes)'
	@echo 'make serve-planted   mistakes of the server that a disk with a volatile cache must show (10 minutes)'
	@echo 'make vm-check        the kernel module in a guest, with 25 power cuts (make check-all: with 2)'
	@echo 'make vm-soak         the same for long: 200 power cuts, millions of operations of fsx'
	@echo 'make vm-bench        the module beside dm-writecache and the bare device; $(OUT)/vm-bench.json'
	@echo 'make vm-destage      what a full cache makes of disks of 400, 2000, 20000 requests/s, beside the others (60 minutes)'
	@echo 'make vm-load         a full cache in a guest, beside dm-writecache, bcache and dm-pcache (19 minutes; QUICK=1: 6)'
	@echo 'make vm-apps         the programs of bench-apps on the native device, in a guest (12 minutes; QUICK=1: 6; root)'
	@echo 'make vm-dynamic      FIO-12 and mail on the native device, static and not, in a guest (12 minutes; QUICK=1: 5; root)'
	@echo 'make vm-shell        a shell in the guest, a device made'
	@echo 'make install         PREFIX=$(PREFIX) DESTDIR=: command, libforebay-map, man pages, completions, units'
	@echo 'make deb             Debian packages, also of the module for DKMS; in $(OUT)/deb'
	@echo 'make clean           remove what was built'

build:
	@scripts/need build
	$(compile) -p forebay-cli -p forebay-map-c -p forebay-map-preload

demo:
	@scripts/need serve
	$(compile) -p forebay-cli
	$(built)/forebay demo --dir $(OUT)/demo

# STRICT=1: a test that is skipped is a failure.  PART: one part of the whole check.
CHECK = scripts/check $(if $(STRICT),--strict) $(PART:%=--part %)
quick:
	@scripts/need check
	@$(CHECK) --quick

check:
	@scripts/need check
	@$(CHECK)

.PHONY: check-all check-parts
check-all:
	@scripts/need check
	@$(CHECK) --all

check-parts:
	@scripts/check --all --list

# QUICK=1: a quarter of the time, for a look at whether it runs.
BENCH := bench/out
SUITE := $(if $(QUICK),--seconds 8 --sustained 20 --stalled 8,--seconds 20 --sustained 120 --stalled 30)
ROUNDS := $(if $(QUICK),--rounds 31)
bench: build
	cargo build --release -p forebay-load
	@mkdir -p $(BENCH)
	$(built)/forebay bench engine $(ROUNDS) --json > $(BENCH)/bench-engine.json
	$(built)/forebay bench read $(ROUNDS) --json > $(BENCH)/bench-read.json
	$(built)/forebay bench recovery $(if $(QUICK),--pool-size 1G) --json > $(BENCH)/bench-recovery.json
	$(built)/forebay bench slots $(if $(QUICK),--rounds 2) --json > $(BENCH)/bench-slots.json
	$(built)/forebay bench map $(if $(QUICK),--rounds 10) --json > $(BENCH)/bench-map.json
	$(built)/forebay-load suite $(SUITE) --out $(BENCH)

# PEERS, APPS, DYNAMIC: options of bench/peers.sh, apps.sh and dynamic.sh.
.PHONY: bench-peers
bench-peers: build
	bench/peers.sh --out $(BENCH) $(PEERS)
	cargo build -q --release -p forebay-load && $(built)/forebay-load page --out $(BENCH)

.PHONY: bench-apps
bench-apps: build
	bench/apps.sh --out $(BENCH) $(APPS)
	cargo build -q --release -p forebay-load && $(built)/forebay-load page --out $(BENCH)

.PHONY: bench-dynamic
bench-dynamic: build
	bench/dynamic.sh --out $(BENCH) $(DYNAMIC)
	cargo build -q --release -p forebay-load && $(built)/forebay-load page --out $(BENCH)

# MAP_RUN: options of bench/map-run.sh.
.PHONY: bench-map-run
bench-map-run: build
	@scripts/need check
	bench/map-run.sh --out $(BENCH) $(MAP_RUN)
	cargo build -q --release -p forebay-load && $(built)/forebay-load page --out $(BENCH)

soak:
	@scripts/need build
	cargo build --release -p forebay-sim
	$(built)/forebay-sim --first $(FIRST) --seconds $$(($(SECONDS) / 2))
	$(built)/forebay-sim explore --seed $(FIRST) --images 1000000000000 --seconds $$(($(SECONDS) / 2))

.PHONY: groups-soak
groups-soak:
	@scripts/need build
	cargo build --release -p forebay-sim
	$(built)/forebay-sim groups --hostile 5000
	$(MAKE) -C tests groups LIFE=600

.PHONY: mount-model
mount-model:
	@scripts/need build
	MOUNT_MODEL_SECONDS=$(SECONDS) MOUNT_MODEL_SEED=$(FIRST) \
		cargo test -q --release -p forebay-mount random_workloads -- --nocapture

CUTS ?= 200
OPERATIONS ?= 1000000
.PHONY: mount-soak
mount-soak:
	@scripts/need check
	cargo build --release -p forebay-cli
	tests/mount/fsx.sh 600
	tests/mount/differential.sh $(OPERATIONS)
	tests/mount/replayed.sh 20 10000 ext4 xfs btrfs
	tests/mount/cuts.sh $(CUTS) ext4 xfs

KILLS ?= 20
.PHONY: map-kills
map-kills: build
	@scripts/need check
	tests/map/kills.sh $(KILLS)
	tests/map/shared.sh $(KILLS)

# PYTHON, JARS, NODE_PATH and PATH say where programs are; those that are not there are named.
.PHONY: map-programs
map-programs: build
	@scripts/need check
	tests/map/programs.sh $(or $(PROGRAM_KILLS),10)

# Three OSDs on this host; what it takes is in docs/manual/origins.md.
STILL ?= 30
.PHONY: ceph-check
ceph-check: build
	@scripts/need check
	tests/ceph/origin.sh $(STILL)

COUNT ?= 5000
SEED ?= $(FIRST)
.PHONY: hostile
hostile:
	@scripts/need build
	HOSTILE_COUNT=$(COUNT) HOSTILE_SEED=$(SEED) cargo test -q --release -p forebay --test hostile -- --nocapture

fuzz:
	@scripts/need check
	$(MAKE) -C tests fuzz SECONDS=$(SECONDS)
	@if cargo fuzz --version >/dev/null 2>&1; then \
		$(MAKE) fuzz-rust SECONDS=$(SECONDS); \
	else \
		echo 'fuzz/rust was not run: it needs cargo-fuzz (cargo install cargo-fuzz)'; \
	fi

# Engine and library both tell libFuzzer where they went.  No sanitizer, so
# stable Rust does; the targets of fuzz/ have them for the engine.
FUZZ_RUST := target/fuzz-rust
fuzz-rust:
	@for target in image config; do \
		mkdir -p $(FUZZ_RUST)/learned-$$target; \
		CC=clang CFLAGS=-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp \
		cargo fuzz run --fuzz-dir fuzz/rust --sanitizer none --target-dir $(FUZZ_RUST) $$target \
			$(FUZZ_RUST)/learned-$$target fuzz/rust/corpus/$$target -- -max_total_time=$(SECONDS) \
			-max_len=700 -timeout=30 -print_final_stats=1 -verbosity=0 \
			-artifact_prefix=$(FUZZ_RUST)/finding-$$target- || exit 1; \
	done

# ONLY: core, port, rust or kernel.  SAMPLE: so many of each, chosen by SEED.  What ran before
# is not run again; FRESH=1 forgets it, AGAIN=1 tries survivors once more.  TIER=1 or 2:
# only the cheap steps, for a first look.  JOBS at a time, each UNDER a command if others
# use the machine.  docs/design/testing.md has more.
MUTANTS := target/mutants
ONLY ?= core port rust
.PHONY: mutants mutants-weekly mutants-report coverage
mutants: $(MUTANTS)/tools
	@for area in $(ONLY); do \
		$(MUTANTS)/venv/bin/python tests/mutants/run.py $$area $(SAMPLE:%=--sample %) $(SEED:%=--seed %) \
			$(JOBS:%=--jobs %) $(TIER:%=--tier %) $(RESULTS:%=--out %) $(if $(FRESH),--fresh) \
			$(if $(AGAIN),--again) $(if $(UNDER),--under '$(UNDER)') || exit 1; \
	done

# A hundred others each week; what they come to, in the end.
mutants-weekly:
	$(MAKE) mutants RESULTS=$(OUT)/mutants/weekly FRESH=1 SAMPLE=100 SEED=$(shell date +%G-%V) ONLY='core port'
	$(MAKE) mutants RESULTS=$(OUT)/mutants/weekly FRESH=1 SAMPLE=25 SEED=$(shell date +%G-%V) ONLY=rust

mutants-report: $(MUTANTS)/tools
	@$(MUTANTS)/venv/bin/python tests/mutants/run.py report

$(MUTANTS)/tools: tests/mutants/requirements.txt
	@scripts/need mutants
	python3 -m venv $(MUTANTS)/venv
	$(MUTANTS)/venv/bin/pip install -q -r tests/mutants/requirements.txt
	$(MUTANTS)/venv/bin/python tests/mutants/run.py self-test
	touch $@

coverage:
	@scripts/need coverage
	@tests/coverage/coverage.py

.PHONY: serve-planted
serve-planted:
	@scripts/need serve
	tests/serve/planted.sh

vm-check vm-soak vm-bench vm-shell: build
	@scripts/need vm
	tests/vm/run $(@:vm-%=%)

.PHONY: vm-load vm-apps vm-dynamic
vm-load vm-apps vm-dynamic: build
	@scripts/need vm
	@scripts/need bench
	BENCH_OUT=$(BENCH) tests/vm/run $(@:vm-%=%) $(if $(QUICK),$(if $(filter %dynamic,$@),1,quick))
	cargo build -q --release -p forebay-load && $(built)/forebay-load page --out $(BENCH)

.PHONY: vm-destage
vm-destage: build
	@scripts/need vm
	BENCH_OUT=$(BENCH) tests/vm/run destage

install: build install-map
	install -D -m 755 $(built)/forebay $(bindir)/forebay
	install -D -m 755 packaging/mount.forebay $(sbindir)/mount.forebay
	install -D -m 755 packaging/umount.forebay $(sbindir)/umount.forebay
	for what in mount umount; do ln -sf $$what.forebay $(sbindir)/$$what.fuse.forebay; done
	install -d $(mandir)
	$(built)/forebay man $(mandir)
	install -D -m 644 packaging/forebay.d.5 $(mandir)/../man5/forebay.d.5
	install -d $(completions)/bash-completion/completions $(completions)/zsh/site-functions \
		$(completions)/fish/vendor_completions.d
	$(built)/forebay completions bash > $(completions)/bash-completion/completions/forebay
	$(built)/forebay completions zsh > $(completions)/zsh/site-functions/_forebay
	$(built)/forebay completions fish > $(completions)/fish/vendor_completions.d/forebay.fish
	install -D -m 644 packaging/udev/65-forebay.rules $(DESTDIR)$(libdir)/udev/rules.d/65-forebay.rules
	install -d $(DESTDIR)$(libdir)/systemd/system $(DESTDIR)$(libdir)/systemd/system-generators
	for unit in forebay@ forebay-serve@ forebay-mount@; do \
		sed $(places) packaging/systemd/$$unit.service.in > $(DESTDIR)$(libdir)/systemd/system/$$unit.service || exit 1; \
	done
	sed $(places) packaging/systemd/forebay-generator.in \
		> $(DESTDIR)$(libdir)/systemd/system-generators/forebay-generator
	chmod 755 $(DESTDIR)$(libdir)/systemd/system-generators/forebay-generator

# libforebay-map: shared, static, header, pkg-config; and what `forebay map-run` preloads.
mapdir = $(DESTDIR)$(PREFIX)
install-map:
	$(compile) -p forebay-map-c -p forebay-map-preload
	install -D -m 644 $(built)/libforebay_map_c.so $(mapdir)/lib/libforebay-map.so.0
	ln -sf libforebay-map.so.0 $(mapdir)/lib/libforebay-map.so
	install -m 644 $(built)/libforebay_map_c.a $(mapdir)/lib/libforebay-map.a
	install -D -m 755 $(built)/libforebay_map_preload.so $(mapdir)/lib/forebay/libforebay-map-preload.so
	strip --strip-debug $(mapdir)/lib/forebay/libforebay-map-preload.so
	strip --strip-debug $(mapdir)/lib/libforebay-map.so.0 $(mapdir)/lib/libforebay-map.a
	install -D -m 644 crates/forebay-map-c/include/forebay_map.h $(mapdir)/include/forebay_map.h
	install -d $(mapdir)/lib/pkgconfig
	sed -e 's,@prefix@,$(PREFIX),' -e 's,@version@,$(version),' packaging/forebay-map.pc.in \
		> $(mapdir)/lib/pkgconfig/forebay-map.pc

# What DKMS builds the module from; then: dkms install forebay/$(version)
install-dkms:
	install -d $(dkmsdir)/kernel $(dkmsdir)/port $(dkmsdir)/host $(dkmsdir)/LICENSES
	install -m 644 kernel/Kbuild kernel/Makefile kernel/*.[ch] $(dkmsdir)/kernel
	for layer in core/*; do install -D -m 644 -t $(dkmsdir)/$$layer $$layer/*; done
	install -m 644 port/linux*.[ch] $(dkmsdir)/port
	install -m 644 host/*.[ch] $(dkmsdir)/host
	install -m 644 LICENSES/* $(dkmsdir)/LICENSES
	sed 's/#MODULE_VERSION#/$(version)/' packaging/dkms.conf > $(dkmsdir)/dkms.conf

deb:
	@scripts/need deb
	packaging/build-deb $(OUT)/deb

clean:
	cargo clean
	rm -rf $(OUT)
	$(MAKE) -C tests clean
