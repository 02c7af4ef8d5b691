#!/usr/bin/env bash
# Long runs of all fuzz targets and of the differential reading; at the end a row for docs/proof/fuzz.csv.
# SECONDS_EACH (default 300): time for each target. JOBS (default 2): processes at once. SEED (default: the time): job 1
# has this seed, job 2 the next, and so on. TARGETS: only these.
# MERGE=1 instead packs what earlier runs found, without what reaches nothing new, into the repository's corpus.
# Needs a C++ compiler for libFuzzer, which libfuzzer-sys brings along.
set -euo pipefail
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-300} jobs=${JOBS:-2} seed=${SEED:-$(date +%s)}
host=$(rustc -vV | sed -n 's/^host: //p')
. scripts/target.sh
out=$target/fuzz
targets=${TARGETS:-open_walk_read recovery overwrite check operate gather disk_image nbd_client}

# What cargo-fuzz passes, without a sanitizer: unsafe code is behind few doors, and overflow checks and debug
# assertions are on.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Ccodegen-units=1 --cfg fuzzing"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares"
# shellcheck disable=SC2046 # several options
RUSTFLAGS=$flags cargo build --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$out" \
    $(printf -- '--bin %s ' $targets)
[ -z "${BUILD_ONLY:-}" ] || exit 0

# The repository's corpus, which runs only read; what they find goes to $out/corpus.
for target in $targets; do
    rm -rf "$out/seeds/$target"
    mkdir -p "$out/seeds/$target" "$out/corpus/$target" "$out/artifacts/$target"
    [ ! -e "fuzz/corpus/$target.tar.zst" ] || tar --zstd -xf "fuzz/corpus/$target.tar.zst" -C "$out/seeds/$target"
done

# The longest inputs of a target: archives need headers.
longest() {
    case $1 in gather) echo 12288 ;; *) echo 160 ;; esac
}

if [ -n "${MERGE:-}" ]; then
    mkdir -p fuzz/corpus
    for target in $targets; do
        rm -rf "$out/merged/$target"
        mkdir -p "$out/merged/$target"
        "$out/$host/release/$target" -merge=1 -max_len="$(longest "$target")" \
            "$out/merged/$target" "$out/corpus/$target" "$out/seeds/$target" > "$out/$target.merge.log" 2>&1
        count=$(find "$out/merged/$target" -type f | wc -l)
        [ "$count" -gt 0 ] || { echo "$target: nothing to pack, see $out/$target.merge.log" >&2; exit 1; }
        tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --zstd -cf "fuzz/corpus/$target.tar.zst" \
            -C "$out/merged/$target" .
        echo "$target: $count inputs"
    done
    exit 0
fi

# run TARGET JOB: one process after the other until the time is over; what fails ends a process and is kept.
run() {
    local target=$1 job=$2 end=$((SECONDS + each)) left=$each next child='' log=$out/$1.$2.log
    trap 'kill $child 2>/dev/null; exit' TERM
    next=$((seed + job - 1))
    : > "$log"
    while [ "$left" -gt 0 ]; do
        "$out/$host/release/$target" -seed="$next" -max_total_time="$left" -max_len="$(longest "$target")" \
            -len_control=0 -timeout=120 \
            -report_slow_units=120 -rss_limit_mb=2048 -reload=30 -print_final_stats=1 \
            -artifact_prefix="$out/artifacts/$target/" "$out/corpus/$target" "$out/seeds/$target" >> "$log" 2>&1 &
        child=$!
        wait "$child" || true
        next=$((next + 1000)) left=$((end - SECONDS))
    done
}

# Processor seconds, user and system, of everything that this shell has waited for (`cutime` and `cstime` of proc(5)).
used() {
    awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($14 + $15) / hz }' "/proc/$$/stat"
}

# What an earlier run found is kept for whoever has not looked yet.
if [ -n "$(find "$out/artifacts" -type f)" ]; then
    mv "$out/artifacts" "$out/artifacts.$seed"
    for target in $targets; do mkdir -p "$out/artifacts/$target"; done
fi
trap 'kill $(jobs -p) 2>/dev/null; exit 130' INT TERM
row='' before=$(used)
for target in $targets; do
    rm -f "$out/$target".*.log
    for job in $(seq "$jobs"); do run "$target" "$job" & done
    wait
    count=$(cat "$out/$target".*.log | awk '/^stat::number_of_executed_units:/ { sum += $2 } END { print sum + 0 }')
    [ "$count" -gt 0 ] || { echo "$target: nothing was run, see $out/$target.1.log" >&2; exit 1; }
    grep -hE '^#[0-9]+.* cov: ' "$out/$target".*.log | tail -n 1 || true
    row+=" $target $count,"
done
hours=$(awk -v before="$before" -v after="$(used)" 'BEGIN { printf "%.2f", (after - before) / 3600 }')
crashes=$(find "$out/artifacts" -type f | wc -l)
find "$out/artifacts" -type f | sed 's/^/to look at: /'

echo
echo "Row for docs/proof/fuzz.csv (processor hours as the system counted them):"
echo "$(date +%F),$(git rev-parse --short HEAD),$seed,\"$(sed 's/^ *//' <<<"${row%,}")\",$hours,$crashes"
UEXT4_FUZZ_FIRST=$seed UEXT4_FUZZ_SEEDS=${DIFFERENTIAL_SEEDS:-300} \
    cargo test -q -p uext4-hostile --test suite differential:: -- --nocapture | grep -oE '(compared: .*|test result.*)'
[ "$crashes" -eq 0 ]
