# Sourced by the scripts that run several steps: runs them, keeps their output, counts tests.
# shellcheck shell=bash

. "${BASH_SOURCE[0]%/*}/target.sh"
logs=$target/test-logs
rm -rf "$logs"
mkdir -p "$logs"
# Tests append a line for each skip (crates/testkit/src/requirement.rs).
UEXT4_SKIP_LOG=$logs/skips.txt
export UEXT4_SKIP_LOG
: > "$UEXT4_SKIP_LOG"
failed_steps=()
known_steps=()

# chosen NAME: whether STEPS, names with commas between, asks for that step; without STEPS every step is.
chosen() {
    [ -z "${STEPS:-}" ] || [[ ",$STEPS," == *",$1,"* ]]
}

# step NAME COMMAND...: output goes to the terminal and to a log; a failure is remembered.
step() {
    local name=$1 start=$SECONDS status before skips
    shift
    known_steps+=("$name")
    chosen "$name" || return 0
    before=$(wc -l < "$UEXT4_SKIP_LOG")
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$logs/$name.log"
    status=${PIPESTATUS[0]}
    # Lines, not names: a test that two builds have is skipped, and counted as passed, by both.
    skips=$(tail -n "+$((before + 1))" "$UEXT4_SKIP_LOG")
    printf '== %s: %s, %d s\n' "$name" "$(verdict "$name" "$status" "$skips")" $((SECONDS - start))
    [ "$status" -eq 0 ] || failed_steps+=("$name")
}

# verdict NAME STATUS SKIPS: what became of a step. One in which everything was skipped is not ok.
verdict() {
    local count ran
    [ "$2" -eq 0 ] || { echo FAILED; return; }
    [ -n "$3" ] || { echo ok; return; }
    count=$(echo "$3" | wc -l)
    ran=$(($(results passed "$1") - $(echo "$3" | grep -c '^SKIP [^ ]*::') + $(grep -c '^GUEST-PASS ' "$logs/$1.log")))
    if [ "$ran" -gt 0 ]; then echo "ok, $count skipped"; else echo skipped; fi
}

# Package of a test file crates/X/tests/Y.rs.
package_of() {
    sed -n 's/^name = "\(.*\)"$/\1/p' "$(dirname "$(dirname "$1")")/Cargo.toml" | head -n 1
}

# release_tests NAME: every test file of that name, as the release build. Such files are empty in debug builds
# (`#![cfg(not(debug_assertions))]`): what they measure is the shipped code.
release_tests() {
    local file packages=()
    for file in crates/*/tests/"$1".rs; do
        [ ! -e "$file" ] || packages+=(-p "$(package_of "$file")")
    done
    [ "${#packages[@]}" -gt 0 ] || { echo "no test file is named $1.rs"; return 1; }
    cargo test --release "${released[@]}" "${packages[@]}" --test "$1" -- --nocapture --test-threads=1
}

# results WORD [STEP]: the sum of the numbers before WORD in the lines by which cargo test (`test result: ...`) and
# pytest (`=== 3 failed, 5 passed in 1.2s ===`) end, of one step or of all. Errors of pytest count as failures.
results() {
    cat "$logs"/${2:-*}.log | sed 's/\x1b\[[0-9;]*m//g' | awk -v word="$1" '
        /^test result: / || /^=+ .*(passed|failed|errors?).* in [0-9.]+s.* =+$/ {
            for (i = 2; i <= NF; i++) {
                name = $i
                sub(/[;,]$/, "", name)
                if (/^=/ && name ~ /^errors?$/) name = "failed"
                if (name == word && $(i - 1) ~ /^[0-9]+$/) n += $(i - 1)
            }
        }
        END { print n + 0 }'
}

# The tests that failed, one a line: `STEP: FILE: TEST`. A program that ended without a result (killed, aborted) is told
# too. The second of cargo's lists `failures:` holds the names alone.
failed_tests() {
    local log
    for log in "$logs"/*.log; do
        awk -v step="$(basename "$log" .log)" '
            function unfinished() { if (file != "") print step ": " file ": ended without a result" }
            { gsub(/\033\[[0-9;]*m/, "") }
            /^ *(Running|Doc-tests) / {
                unfinished()
                file = $0
                sub(/^ *Running (unittests )?/, "", file)
                sub(/^ *Doc-tests /, "documentation of ", file)
                program = file
                sub(/ \(.*/, "", file)
                # Crates have files of the same name: the program in brackets tells them apart.
                sub(/.*\(.*\//, "", program); sub(/-[0-9a-f]*\)$/, "", program)
                if (file ~ /^src\//) file = program " " file
                name = file
            }
            /^failures:$/ { count = 0; listed = 1; next }
            listed && /^    [^ ]/ { tests[count++] = substr($0, 5) }
            /^test result:/ {
                if ($3 == "FAILED.") for (i = 0; i < count; i++) print step ": " name ": " tests[i]
                count = listed = 0
                file = ""
            }
            /^GUEST-FAIL / { print step ": " substr($0, 12) }
            # Those of pytest, in its summary.
            /^(FAILED|ERROR) [^ ]*\.py/ { print step ": " $2 }
            END { unfinished() }' "$log"
    done
}

finish() {
    local skipped counted passed failed guest_passed guest_failed name
    for name in $(tr , " " <<< "${STEPS:-}"); do
        [[ " ${known_steps[*]} " == *" $name "* ]] ||
            { echo "no step is named $name; there are: ${known_steps[*]}"; failed_steps+=("$name"); }
    done
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
    if [ "${#failed_steps[@]}" -gt 0 ] || [ "$failed" -gt 0 ]; then
        echo "Failed steps: ${failed_steps[*]} (output in $logs)"
        failed_tests | sed 's/^/  /'
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
    # A step can fail without a failed test (lint, build): the exit status says so in any case.
    [ "${#failed_steps[@]}" -eq 0 ] && [ "$failed" -eq 0 ]
}
