# make run     build, and ask the demo model about a story: the answer is the last line
# make test    every test
# make bench   load time, memory and tokens a second of MODEL (default: the demo), as parts of what the machine can do
# make lint    formatting, clippy, style
# make header  write include/lfm3.h anew from src/ffi
# make fuzz    SECONDS_EACH seconds for each target (needs nightly and cargo-fuzz)
# make accept  the long checks; CHECKPOINT='DIR ...' are full-size checkpoint folders, steps are timed on the first

CARGO ?= cargo
CC ?= cc
MODEL ?= examples/demo-model
SECONDS_EACH ?= 60
STORY = Ivan finds a green mirror in the tower. Paul has a red pen. Ivan walks to the garden. \
	Paul gives the pen to Ivan. Paul is now in the cellar. Ivan gives the mirror to Paul.

.PHONY: run test bench lint header fuzz accept

run: target/release/chat
	@printf '%s\n\n%s\n' '$(STORY)' 'Where is Ivan?'
	@target/release/chat --model examples/demo-model --temp 0 "$$(printf '%s\n\n%s' '$(STORY)' 'Where is Ivan?')"

target/release/chat: examples/chat.c include/lfm3.h FORCE
	$(CARGO) build --release
	$(CC) -std=c99 -O2 -Wall -Wextra examples/chat.c -Iinclude -Ltarget/release -llfm3 \
		-Wl,-rpath,$(CURDIR)/target/release -o $@

FORCE:

test:
	$(CARGO) test

bench:
	$(CARGO) bench --bench text -- $(MODEL)

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) test --test tidy

header:
	LFM3_WRITE_HEADER=1 $(CARGO) test --test c header

fuzz:
	@for target in $$(cargo +nightly fuzz list --fuzz-dir tests/fuzz); do \
		mkdir -p tests/fuzz/corpus/$$target; \
		cargo +nightly fuzz run --fuzz-dir tests/fuzz $$target tests/fuzz/corpus/$$target tests/fuzz/seeds/$$target -- \
			-max_total_time=$(SECONDS_EACH) -max_len=16384 || exit 1; \
	done

accept:
	@test -n "$(CHECKPOINT)" || { echo "make accept CHECKPOINT='DIR ...', full-size checkpoint folders"; exit 2; }
	$(CARGO) test -- --include-ignored
	for folder in $(CHECKPOINT); do $(CARGO) bench --bench text -- $$folder || exit 1; done
	$(CARGO) bench --bench step_time -- $(firstword $(CHECKPOINT))
