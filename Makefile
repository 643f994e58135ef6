# make run     build, and ask the demo model about a picture: the answer is the last line
# make describe  ask it about every picture in PICTURES, a JSON line each
# make test    every test
# make bench   load time, memory and tokens a second of MODEL (default: the demo), as parts of what the machine can do,
#              and what a picture of WIDTH x HEIGHT pixels takes where the model has vision
# make lint    formatting, clippy, style
# make header  write include/lfm3.h anew from src/ffi
# make fuzz    SECONDS_EACH seconds for each target (needs nightly and cargo-fuzz)
# make accept  the long checks; CHECKPOINT='DIR ...' are full-size checkpoint folders: steps are timed on the first, and
#              a picture on each that has vision

CARGO ?= cargo
CC ?= cc
MODEL ?= examples/demo-model
SECONDS_EACH ?= 60
PICTURES ?= examples/pictures
WIDTH ?= 1024
HEIGHT ?= 768
PICTURE = examples/pictures/shapes-1.png
QUESTION = Describe the picture.
VISION = $(CARGO) bench --bench vision --

.PHONY: run describe test bench lint header fuzz accept

run: target/release/chat
	@echo '$(PICTURE): $(QUESTION)'
	@target/release/chat --model examples/demo-model --temp 0 --image $(PICTURE) '$(QUESTION)'

describe: target/release/describe
	@target/release/describe --model $(MODEL) $(PICTURES)

target/release/chat target/release/describe: target/release/%: examples/%.c include/lfm3.h FORCE
	$(CARGO) build --release
	$(CC) -std=c99 -O2 -Wall -Wextra $< -Iinclude -Ltarget/release -llfm3 \
		-Wl,-rpath,$(CURDIR)/target/release -o $@

FORCE:

test:
	$(CARGO) test

bench:
	$(CARGO) bench --bench text -- $(MODEL)
	$(VISION) $(MODEL) --width $(WIDTH) --height $(HEIGHT)

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
	for folder in $(CHECKPOINT); do $(VISION) $$folder --width $(WIDTH) --height $(HEIGHT) || exit 1; done
