#!/usr/bin/env bash
# rounds.sh crash|model|turns|kill: long runs of a suite, round after round, each with another seed, and so with other
# contents and layouts. At the end a row is added to docs/proof/NAME.csv, so that runs add up.
# rounds.sh mount: mount-stress.sh, which has its own settings.
# SECONDS_ALL (600): when no new round begins any more. SEED (the time): of the first round. JOBS (2): rounds at once.
# SCENARIO: only tests whose names match this expression (grep -E). COUNT: states of a scenario, steps of a model,
# seconds of turns, kills, in each round.
# A failure prints the seed and the command that shows it again.
set -euo pipefail
cd "$(dirname "$0")/.."
suite=$1 names='' programs=(suite)
all=${SECONDS_ALL:-600} jobs=${JOBS:-2} first=${SEED:-$(date +%s)} scenario=${SCENARIO:-}
case $suite in
    mount) exec scripts/mount-stress.sh ;;
    crash) module='crash_[a-z_]+' prefix=UEXT4_CRASH count=STATES each=${COUNT:-300}
        names='^crash_(tree|rename|xattrs)/' programs+=(crash_edits) ;;
    model) module=model prefix=UEXT4_MODEL count=STEPS each=${COUNT:-60000} ;;
    turns) module=tree_walk::turns prefix=UEXT4_TURNS count=SECONDS each=${COUNT:-60} ;;
    kill) module='(kill|tree_walk::kills)' prefix=UEXT4_KILL count=ROUNDS each=${COUNT:-200} ;;
    *) echo "no suite is named $suite" >&2; exit 2 ;;
esac
commit=$(git rev-parse --short HEAD) # of what is built now, whatever comes meanwhile
. scripts/target.sh
logs=$target/rounds/$suite csv=docs/proof/$suite.csv
rm -rf "$logs"
mkdir -p "$logs"
export RUST_BACKTRACE=0 "${prefix}_$count=$each"
# build PROGRAM: copies the test program, and lists its tests that are wanted.
build() {
    local package built
    case $1 in suite) package=uext4 ;; *) package=uext4-transfer ;; esac
    built=$(cargo test --release -p "$package" --test "$1" --no-run --message-format=json |
        sed -n "s/.*\"name\":\"$1\".*\"executable\":\"\([^\"]*\)\".*/\1/p" | tail -n 1)
    [ -x "$built" ] || { echo "the tests were not built" >&2; exit 1; }
    cp "$built" "$logs/$1"
    echo "$package" > "$logs/$1.package"
    # A program of one module is named as the module.
    "$logs/$1" --list | sed -n 's/: test$//p' | sed "$([ "$1" = suite ] || echo "s/^/$1::/")" |
        grep -E "^$module::" | grep -E "$scenario" > "$logs/$1.tests" || true
}
for program in "${programs[@]}"; do build "$program"; done
[ -n "$(cat "$logs"/*.tests)" ] || { echo "no test is named $scenario" >&2; exit 1; }

SECONDS=0 # without the build

# round JOB SEED: all wanted tests once.
round() {
    local program tests
    for program in "${programs[@]}"; do
        mapfile -t tests < <(sed "s/^$program:://" "$logs/$program.tests")
        [ "${#tests[@]}" -gt 0 ] || continue
        env "${prefix}_SEED=$2" "${prefix}_TOTALS=$logs/totals.$1" RUST_TEST_THREADS=1 \
            CARGO_PKG_NAME="$(cat "$logs/$program.package")" "$logs/$program" --exact "${tests[@]}" || return 1
    done
}

# run JOB: rounds until the time is over. One that fails ends the job.
run() {
    local job=$1 seed
    for ((seed = first + job - 1; SECONDS < all; seed += jobs)); do
        if round "$job" "$seed" > "$logs/$seed.log" 2>&1; then
            rm "$logs/$seed.log"
            echo "$seed" >> "$logs/rounds.$job"
        else
            grep -E '^crash state|replay:|panicked' "$logs/$seed.log" >&2 || tail -n 20 "$logs/$seed.log" >&2
            echo "round $seed failed: $logs/$seed.log" >&2
            return 1
        fi
    done
}

# What tests counted. Images that are alike in two rounds count twice: contents depend on the seed, so hardly any are.
row() {
    local totals rounds
    rounds=$(cat "$logs"/rounds.* 2> /dev/null | wc -l)
    [ "$rounds" -gt 0 ] || { echo "no round was finished" >&2; return 1; }
    # Power cuts during operations on names have columns of their own.
    totals=$(cat "$logs"/totals.* | awk -v names="$names" '
        names { $(NF + 1) = $1 ~ names ? $2 : 0; $(NF + 1) = $1 ~ names ? $3 : 0 }
        { for (i = 2; i <= NF; i++) sum[i] += $i; if (NF > n) n = NF }
        END { for (i = 2; i <= n; i++) printf "%s%d", (i > 2 ? "," : ""), sum[i] }')
    echo "$(date +%F),$commit,$first,$rounds,$failed,$totals" | tee -a "$csv"
    awk -F, 'NR == 1 { for (i = 6; i <= NF; i++) name[i] = $i; n = NF; next } { for (i = 6; i <= n; i++) sum[i] += $i }
        END { printf "all runs:"; for (i = 6; i <= n; i++) printf " %d %s", sum[i], name[i]; print "" }' "$csv"
}

failed=0 running=()
trap 'kill "${running[@]}" 2> /dev/null; row; exit 130' INT TERM
for job in $(seq "$jobs"); do
    run "$job" &
    running+=("$!")
done
for job in "${running[@]}"; do wait "$job" || failed=$((failed + 1)); done
row
[ "$failed" -eq 0 ]
