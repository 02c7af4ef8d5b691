# To be sourced in the project's folder: $target is where cargo builds, as an absolute path. CARGO_TARGET_DIR, absolute
# or seen from here, is set to the same, for what is started in another folder.
# shellcheck shell=bash

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(realpath "$target")
export CARGO_TARGET_DIR=$target
