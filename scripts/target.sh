# To be sourced in the project's folder: $target is where cargo builds, as an absolute path. CARGO_TARGET_DIR, absolute
# or seen from here, is set to the same, for what is started in another folder.
# shellcheck shell=bash

target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
target=$(realpath "$target")
export CARGO_TARGET_DIR=$target

# The packages of all release builds. Which features the crates below have depends on the packages that cargo is asked
# for: asked for the same ones, it compiles every crate once, whichever program is wanted.
released=(-p uext4 -p uext4-capi -p uext4-cli)
# build_command, build_library: the command uext4; the C library.
build_command() { cargo build --release --quiet "${released[@]}" --bin uext4; }
build_library() { cargo build --release --quiet "${released[@]}" --lib; }
