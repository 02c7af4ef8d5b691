#!/usr/bin/env bash
# The measured promises: instruction counts (valgrind) and ratios of speeds measured side by side.
set -u
cd "$(dirname "$0")/.."
. scripts/steps.sh

step instructions release_tests instructions
step floors release_tests floors
finish
