# Sourced by the scripts that run several steps: runs them, keeps their output, counts tests.
# shellcheck shell=bash

logs=target/test-logs
rm -rf "$logs"
mkdir -p "$logs"
# Tests append a line for each skip (crates/testkit/src/requirement.rs).
UEXT4_SKIP_LOG=$PWD/$logs/skips.txt
export UEXT4_SKIP_LOG
: > "$UEXT4_SKIP_LOG"
failed_steps=()

# step NAME COMMAND...: output goes to the terminal and to a log; a failure is remembered.
step() {
    local name=$1 start=$SECONDS status
    shift
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$logs/$name.log"
    status=${PIPESTATUS[0]}
    local verdict=ok
    [ "$status" -eq 0 ] || { verdict=FAILED; failed_steps+=("$name"); }
    printf '== %s: %s, %d s\n' "$name" "$verdict" $((SECONDS - start))
}

# Package of a test file crates/X/tests/Y.rs.
package_of() {
    sed -n 's/^name = "\(.*\)"$/\1/p' "$(dirname "$(dirname "$1")")/Cargo.toml" | head -n 1
}

# release_tests NAME: every test file of that name, as the release build. Such files are empty in debug builds
# (`#![cfg(not(debug_assertions))]`): what they measure is the shipped code.
release_tests() {
    local file found=0
    for file in crates/*/tests/"$1".rs; do
        [ -e "$file" ] || continue
        found=1
        cargo test --release -p "$(package_of "$file")" --test "$1" -- \
            --nocapture --test-threads=1 || return 1
    done
    [ "$found" -eq 1 ] || { echo "no test file is named $1.rs"; return 1; }
}

# Sum of field N of all `test result:` lines, as cargo test prints them.
results() {
    cat "$logs"/*.log | sed -n "s/^test result: .*[ .]\([0-9][0-9]*\) $1;.*/\1/p" |
        awk '{ n += $1 } END { print n + 0 }'
}

finish() {
    local skipped counted passed failed guest_passed guest_failed
    skipped=$(sort -u "$UEXT4_SKIP_LOG" | wc -l)
    # A skipped Rust test (module::name) returns early, so cargo counts it as passed.
    counted=$(sort -u "$UEXT4_SKIP_LOG" | grep -c '^SKIP [^ ]*::')
    guest_passed=$(cat "$logs"/*.log | grep -c '^GUEST-PASS ')
    guest_failed=$(cat "$logs"/*.log | grep -c '^GUEST-FAIL ')
    passed=$(($(results passed) - counted + guest_passed))
    failed=$(($(results failed) + guest_failed))
    echo
    if [ "$skipped" -gt 0 ]; then
        echo "Skipped on this machine:"
        sort -u "$UEXT4_SKIP_LOG" | sed 's/^SKIP /  /'
    fi
    [ "${#failed_steps[@]}" -eq 0 ] || echo "Failed steps: ${failed_steps[*]} (output in $logs)"
    echo "$passed passed, $failed failed, $skipped skipped"
    # A step can fail without a failed test (lint, build): the exit status says so in any case.
    [ "${#failed_steps[@]}" -eq 0 ] && [ "$failed" -eq 0 ]
}
