# make run     build, and ask the demo model about a story: the answer is the last line
# make test    every test
# make bench   load time, memory and tokens a second of MODEL (default: the demo), as parts of what the machine can do
# make lint    formatting, clippy, style
# make header  write include/lfm3.h anew from src/ffi
# make fuzz    SECONDS_EACH seconds for each target (needs nightly and cargo-fuzz)
# make accept  the long checks; CHECKPOINT=DIR is a full-size checkpoint folder

CARGO ?= cargo
CC ?= cc
MODEL ?= examples/demo-model
SECONDS_EACH ?= 60
STORY = Eva finds a yellow basket in the cellar. Zoe buys a black boat at the farm. Kofi has a blue key. \
	Eva gives the basket to Hugo. Zoe gives the boat to Clara. Kofi walks to the bakery. Priya takes the boat from Clara.

.PHONY: run test bench lint header fuzz accept

run: target/release/chat
	@target/release/chat --model examples/demo-model --think --temp 0 "$(STORY) Who has the boat?"

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
	LFM3_WRITE_HEADER=1 $(CARGO) test --test header

fuzz:
	@for target in $$(cargo +nightly fuzz list --fuzz-dir tests/fuzz); do \
		mkdir -p tests/fuzz/corpus/$$target; \
		cargo +nightly fuzz run --fuzz-dir tests/fuzz $$target tests/fuzz/corpus/$$target tests/fuzz/seeds/$$target -- \
			-max_total_time=$(SECONDS_EACH) -max_len=16384 || exit 1; \
	done

accept:
	@test -d "$(CHECKPOINT)" || { echo "make accept CHECKPOINT=DIR, a full-size checkpoint folder"; exit 2; }
	$(CARGO) test --release -- --include-ignored
	$(CARGO) bench --bench text -- $(CHECKPOINT)
	$(CARGO) bench --bench step_time -- $(CHECKPOINT)
