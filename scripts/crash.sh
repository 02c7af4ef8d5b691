#!/usr/bin/env bash
# Long runs of the crash scenarios: round after round, each with another seed, and so with other contents and layouts.
# At the end a row is added to docs/proof/crash.csv, so that runs add up.
# SECONDS_ALL (600): when no new round begins any more. STATES (300): of each scenario in a round. SEED (default: the
# time): of the first round. JOBS (2): rounds at once. SCENARIO: only names with this in them.
set -euo pipefail
cd "$(dirname "$0")/.."
all=${SECONDS_ALL:-600} jobs=${JOBS:-2} first=${SEED:-$(date +%s)} scenario=${SCENARIO:-}
logs=${CARGO_TARGET_DIR:-$PWD/target}/crash
rm -rf "$logs"
mkdir -p "$logs"
program=$(cargo test --release -p uext4 --test crash_named --no-run --message-format=json |
    sed -n 's/.*"name":"crash_named".*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
[ -x "$program" ] || { echo "the scenarios were not built" >&2; exit 1; }
cp "$program" "$logs/crash_named"
export CARGO_PKG_NAME=uext4 RUST_BACKTRACE=0 UEXT4_CRASH_STATES=${STATES:-300}

# run JOB: rounds until the time is over. One that fails ends the job.
run() {
    local job=$1 seed
    for ((seed = first + job - 1; SECONDS < all; seed += jobs)); do
        if UEXT4_CRASH_SEED=$seed UEXT4_CRASH_TOTALS=$logs/totals.$job RUST_TEST_THREADS=1 \
            "$logs/crash_named" $scenario > "$logs/$seed.log" 2>&1; then
            rm "$logs/$seed.log"
            echo "$seed" >> "$logs/rounds.$job"
        else
            grep -E '^(crash state|  replay:)|panicked' "$logs/$seed.log" >&2 || tail -n 20 "$logs/$seed.log" >&2
            echo "round $seed failed: $logs/$seed.log" >&2
            return 1
        fi
    done
}

# Images that are alike in two rounds are counted twice: their contents depend on the seed, so hardly any are.
row() {
    local states images rounds
    rounds=$(cat "$logs"/rounds.* 2> /dev/null | wc -l)
    [ "$rounds" -gt 0 ] || { echo "no round was finished" >&2; return 1; }
    read -r states images < <(cat "$logs"/totals.* | awk '{ s += $2; i += $3 } END { print s + 0, i + 0 }')
    echo "$(date +%F),$(git rev-parse --short HEAD),$first,$rounds,$states,$images,$failed" |
        tee -a docs/proof/crash.csv
    awk -F, 'NR > 1 { s += $5; i += $6 } END { print "all runs: " s " states, " i " images" }' docs/proof/crash.csv
}

trap 'kill $(jobs -p) 2> /dev/null; failed=0; row; exit 130' INT TERM
failed=0 running=()
for job in $(seq "$jobs"); do
    run "$job" &
    running+=("$!")
done
for job in "${running[@]}"; do wait "$job" || failed=$((failed + 1)); done
row
[ "$failed" -eq 0 ]
