# The commands of this project. Each is a few lines over tools/ and CMake; see docs/hacking.md.
# Variables: BUILD (folder, build), JOBS (compilers at a time), CMAKE_ARGS (for configuring),
# LOCKSTEP_PYTHON (whose torch to use), KILLS (of ranks, for chaos), BENCH (words for bench/run),
# ALLOWED_SKIPS (a list for tools/skipped: other tests that are skipped are a failure).
BUILD ?= build
export BUILD
ifdef JOBS
export JOBS
endif
ifdef CMAKE_ARGS
export CMAKE_ARGS
endif

STAGE := @tools/stage
CTEST = . $(BUILD)/setup.env && "$${LOCKSTEP_SETUP_CMAKE%cmake}ctest" --test-dir $(BUILD) \
        --output-on-failure -j $(or $(JOBS),$(shell nproc))
# $(call RUN_TESTS,NAME,WHICH): runs tests, whose results are then in tests-NAME.xml with all that they wrote, and
# says which were skipped. ctest decides, and the list of ALLOWED_SKIPS where it is given.
RUN_TESTS = rm -f $(BUILD)/tests-$(1).xml; \
            $(CTEST) $(2) --no-tests=error --output-junit tests-$(1).xml \
              --test-output-size-passed 100000000 --test-output-size-failed 100000000; code=$$?; \
            tools/skipped $(if $(ALLOWED_SKIPS),--allowed $(ALLOWED_SKIPS)) $(BUILD)/tests-$(1).xml || \
              [ $$code != 0 ] || code=1; \
            exit $$code
KILLS ?= 40
SHRINK = python3 tests/chaos/shrink_test.py $(BUILD)/bin/lockstep $(BUILD)/bin/resume_job
CHAOS = python3 tests/chaos/recovery_test.py $(BUILD)/bin/lockstep $(BUILD)/bin/resume_job

.PHONY: help setup build demo demo-stages demo-translate \
        demo-translate-stages test test-gpu test-slow soak chaos bench timings packages docs lint format clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name what; \
	  do printf '  make %-14s %s\n' "$$name" "$$what"; done

setup: ## install what is missing: compiler, cmake, ninja, headers, torch
	$(STAGE) setup tools/setup

build: ## build the library, the programs and the examples
	$(STAGE) setup tools/setup
	$(STAGE) build tools/build

demo: ## from nothing to a small language model, trained on two ranks
	@tools/stage "demo, all of it" $(MAKE) --no-print-directory demo-stages

demo-stages:
	$(STAGE) setup tools/setup
	$(STAGE) build tools/build lockstep_program train_llm
	$(STAGE) train $(BUILD)/bin/lockstep run --nproc-per-node 2 $(BUILD)/bin/train_llm \
	  --save-dir $(BUILD) --experiment-name demo --cache-dir $(BUILD)/demo/cache
	@echo "The run is in $(BUILD)/demo; without that folder the next make demo trains anew."
	@echo "Ask it: $(BUILD)/bin/train_llm generate --snapshot $(BUILD)/demo --temperature 0" \
	  "--instruction reverse --input abcd"
	$(STAGE) ask $(BUILD)/bin/train_llm generate --snapshot $(BUILD)/demo --temperature 0 \
	  --instruction reverse --input abcd

demo-translate: ## from nothing to a small translator of a made-up language, trained on two ranks
	@tools/stage "demo-translate, all of it" $(MAKE) --no-print-directory demo-translate-stages

demo-translate-stages:
	$(STAGE) setup tools/setup
	$(STAGE) build tools/build lockstep_program translate
	$(STAGE) train $(BUILD)/bin/lockstep run --nproc-per-node 2 $(BUILD)/bin/translate \
	  --save-dir $(BUILD) --experiment-name demo-translate
	@echo "The run is in $(BUILD)/demo-translate; without that folder the next make demo-translate trains anew."
	$(STAGE) ask $(BUILD)/bin/translate infer --run $(BUILD)/demo-translate \
	  "the old farmer saw three black dogs in the garden ."

test: ## build everything and run all tests but the slow ones
	$(STAGE) setup tools/setup --tests
	$(STAGE) build tools/build --tests all lockstep_tests
	$(STAGE) test sh -c '$(call RUN_TESTS,fast,-LE slow)'

test-gpu: ## on a machine with a GPU: the tests that need one, and its kernels under compute-sanitizer
	@tools/test_gpu

test-slow: ## run the slow tests; of the long random ones a quarter, which the commit decides
	$(STAGE) setup tools/setup --tests
	$(STAGE) build tools/build --tests all lockstep_tests
	$(STAGE) test-slow sh -c 'left_out=$$($(CTEST) -L soak --show-only=json-v1 | tools/soak left-out) \
	  && { $(call RUN_TESTS,slow,-L slow -E "$$left_out"); }'

soak: ## run all of the long random tests
	$(STAGE) setup tools/setup --tests
	$(STAGE) build tools/build --tests all lockstep_tests
	$(STAGE) soak sh -c '$(call RUN_TESTS,soak,-L soak)'

chaos: ## kill ranks at every point of a run, leave some out, then KILLS (40) at random in each of six jobs
	$(STAGE) setup tools/setup --tests
	$(STAGE) build tools/build --tests lockstep_program resume_job
	$(STAGE) phases $(CHAOS) phases --ranks 2 3 4
	$(STAGE) shrink $(SHRINK) --ranks 2 3 4 --model net gpt --resume
	$(STAGE) shrinks $(SHRINK) --ranks 2 3 4 --model net gpt --kills $(KILLS)
	$(STAGE) net $(CHAOS) random --ranks 2 3 4 --kills $(KILLS) --hangs 0.1 --model net
	$(STAGE) gpt $(CHAOS) random --ranks 2 3 4 --kills $(KILLS) --hangs 0.1 --model gpt

bench: ## run the benchmarks, each against its peer; BENCH="toy launch --quick": some, or how
	$(STAGE) setup tools/setup
	$(STAGE) build tools/build lockstep_bench
	$(STAGE) bench bench/run $(BENCH)

timings: ## where build and tests spent their time
	@tools/timings

packages: ## build the Debian packages, the wheel and the source archive into build/packages
	$(STAGE) setup tools/setup --packages
	$(STAGE) build tools/build
	$(STAGE) packages tools/package --built all

docs: ## write the reference of the public headers, build/reference/html
	$(STAGE) setup tools/setup --packages
	$(STAGE) build tools/build lockstep_reference

lint: ## check the format of the C++ sources and the rules of the tree
	$(STAGE) setup tools/setup --lint
	$(STAGE) format tools/format --check
	$(STAGE) tidy sh -c '"$$(cat $(BUILD)/python)" tests/tidy/check_tree.py .'

format: ## format the C++ sources
	@tools/setup --lint
	$(STAGE) format tools/format

clean: ## remove what was built (.venv stays)
	rm -rf $(BUILD)
