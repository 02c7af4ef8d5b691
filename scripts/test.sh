#!/usr/bin/env bash
# All steps of `make test`, or those that STEPS names (`STEPS=tests,models`). A failing step does not stop the rest; the
# end names the failures and the skips and prints `N passed, N failed, N skipped`.
set -u
cd "$(dirname "$0")/.."
. scripts/steps.sh

lint() { cargo clippy --workspace --all-targets --quiet -- -D warnings; }
documents() {
    local pages=$target/doc/uext4
    local -x RUSTDOCFLAGS=-Dwarnings
    cargo doc --workspace --no-deps --quiet || return 1
    # Once more with the pages of the other crates in place: rustdoc links only to pages that are there.
    rm -r "$pages" && cargo doc --workspace --no-deps --quiet && face_names "$pages"
}
# face_names PAGES: a type that a call of the library takes or gives, but that the library does not name, is a link to
# another crate. Methods of types from the crates below may take what users need not name (`hidden_names`).
hidden_names='/trait\.\(Routing\|LogMap\)\.\|/struct\.\(BufferCache\|Tag\|Tags\|Revokes\)\.\|/enum\.TagChecksum\.'
face_names() {
    local links
    links=$(grep -rE --include='*.html' -o 'href="[./]*uext4_[a-z0-9]+/[^"#]*' "$1" | sort -u)
    grep -q "$hidden_names" <<< "$links" || { echo "$1 has no links to the other crates"; return 1; }
    if grep -v "$hidden_names" <<< "$links"; then
        echo "the library has no name of its own for these (crates/ext4/src/face)"
        return 1
    fi
}
# With the packages of the step before, for which everything is built; asked for one package, cargo chooses other
# features of the crates below, and builds that package and all it needs once more.
built_tests() { cargo test --workspace --test suite -- "$@"; }
# Tests named vm_ run in the step `vm`, those of mkfs_sweep in a step of their own.
tests() { cargo test --workspace --no-fail-fast -- --skip vm_ --skip mkfs_sweep::; }
# Judged by the installed version of e2fsprogs, and by a second one where its source can be fetched.
mkfs_sweep() {
    local status=0
    UEXT4_E2FSPROGS=$(scripts/e2fsprogs.sh) || status=$?
    case $status in
        0) export UEXT4_E2FSPROGS ;;
        3)
            unset UEXT4_E2FSPROGS
            [ "${UEXT4_REQUIRE:-}" != all ] || return 1
            echo "SKIP mkfs-sweep: the source of a second version of e2fsprogs cannot be fetched" |
                tee -a "$UEXT4_SKIP_LOG"
            ;;
        *) return 1 ;;
    esac
    built_tests mkfs_sweep::
}
# Mounts once more, with requests through io_uring, which the kernel offers while this runs.
mount_uring() (
    switch=/sys/module/fuse/parameters/enable_uring
    if [ ! -w $switch ]; then
        echo "SKIP mount-uring: needs root and a kernel that has FUSE over io_uring" | tee -a "$UEXT4_SKIP_LOG"
        [ "${UEXT4_REQUIRE:-}" != all ]
        return
    fi
    # As the benchmark and the stress script do.
    exec 8> /tmp/uext4-fuse-uring.lock
    flock 8
    before=$(cat $switch)
    trap 'echo "$before" > $switch' EXIT
    echo Y > $switch
    UEXT4_TEST_TRANSPORT=uring built_tests mount::
)
# Tests of the Python package. pytest is fetched, with what else they need.
python_package() {
    local status=0
    scripts/python.sh || status=$?
    [ $status -eq 77 ] && [ "${UEXT4_REQUIRE:-}" != all ] || return $status
    echo "SKIP python: the packages of its tests cannot be fetched" | tee -a "$UEXT4_SKIP_LOG"
}
# Models replace std's atomics in the whole dependency tree, so all of them are one build of their own.
models() {
    local file packages=()
    for file in crates/*/tests/loom.rs; do
        packages+=(-p "$(package_of "$file")")
    done
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$target/loom cargo test --release "${packages[@]}" --test loom
}

step format cargo fmt --all --check
step lint lint
step tidy cargo xtask tidy
step documents documents
step tests tests
step mkfs-sweep mkfs_sweep
step mount-uring mount_uring
step packages scripts/packages-check.sh --changed
step models models
step instructions release_tests instructions
step examples scripts/examples.sh
step python python_package
step fio env BYTES=1g scripts/fio-verify.sh
step fio-jobs scripts/fio.sh smoke
step deb env FIO_ENGINE_BUILT=1 scripts/deb-test.sh
step vm scripts/vm-test.sh
finish
