#!/usr/bin/env bash
# Long runs of all fuzz targets and of the differential reading; at the end a table row for docs/proof.md.
# SECONDS_EACH (default 300): time for each target. JOBS (default 2): processes at once. SEED (default: the time).
# MERGE=1 instead packs what earlier runs found, without what reaches nothing new, into the repository's corpus.
# Needs a C++ compiler for libFuzzer, which libfuzzer-sys brings along.
set -eu
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-300} jobs=${JOBS:-2} seed=${SEED:-$(date +%s)}
host=$(rustc -vV | sed -n 's/^host: //p')
out=${CARGO_TARGET_DIR:-$PWD/target}/fuzz

# What cargo-fuzz passes, without a sanitizer: unsafe code is behind few doors, and overflow checks and debug
# assertions are on.
flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Ccodegen-units=1 --cfg fuzzing"
flags+=" -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
flags+=" -Cllvm-args=-sanitizer-coverage-trace-compares"
RUSTFLAGS=$flags cargo build --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$out"
[ -z "${BUILD_ONLY:-}" ] || exit 0

targets="open_walk_read recovery overwrite check"
if [ -n "${MERGE:-}" ]; then
    for target in $targets; do
        rm -rf "$out/merged/$target"
        mkdir -p "$out/merged/$target" "$out/corpus/$target" "$out/seeds/$target" fuzz/corpus
        "$out/$host/release/$target" -merge=1 -max_len=160 "$out/merged/$target" "$out/corpus/$target" \
            "$out/seeds/$target" > "$out/$target.merge.log" 2>&1
        tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --zstd -cf "fuzz/corpus/$target.tar.zst" \
            -C "$out/merged/$target" .
        echo "$target: $(find "$out/merged/$target" -type f | wc -l) inputs"
    done
    exit 0
fi

# Processor seconds, user and system, of everything that this shell has waited for (`cutime` and `cstime` of proc(5)).
used() {
    awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($14 + $15) / hz }' "/proc/$$/stat"
}

executions=0 crashes=0 row= before=$(used)
for target in $targets; do
    mkdir -p "$out/seeds/$target" "$out/corpus/$target" "$out/artifacts/$target"
    log=$out/$target.log
    # New inputs go to the first directory; the repository's corpus is only read.
    tar --zstd -xf "fuzz/corpus/$target.tar.zst" -C "$out/seeds/$target"
    "$out/$host/release/$target" -fork="$jobs" -seed="$seed" -ignore_crashes=1 -ignore_ooms=1 -ignore_timeouts=1 \
        -max_total_time="$each" -max_len=160 -timeout=120 -report_slow_units=120 -rss_limit_mb=1024 \
        -artifact_prefix="$out/artifacts/$target/" "$out/corpus/$target" "$out/seeds/$target" > "$log" 2>&1 || true
    # libFuzzer's last line of progress: `#12345: cov: … exec/s: … oom/timeout/crash: 0/0/0 time: …`.
    last=$(grep -E '^#[0-9]+: cov' "$log" | tail -n 1)
    count=$(sed -n 's/^#\([0-9]*\): .*/\1/p' <<< "$last")
    found=$(find "$out/artifacts/$target" -type f | wc -l)
    echo "$target: ${last:-no progress line, see $log}"
    executions=$((executions + ${count:-0}))
    crashes=$((crashes + found))
    row+=" $target ${count:-0},"
done
find "$out/artifacts" -type f | sed 's/^/to look at: /'

cores=$(awk -v before="$before" -v after="$(used)" 'BEGIN { printf "%.2f", (after - before) / 3600 }')
UEXT4_FUZZ_FIRST=$seed UEXT4_FUZZ_SEEDS=${DIFFERENTIAL_SEEDS:-300} \
    cargo test -q -p uext4-hostile --test differential -- --nocapture | grep -E '^(compared|test result)'
echo
echo "Row for docs/proof.md (processor hours as the system counted them):"
echo "| $(date +%F) | $(git rev-parse --short HEAD) | $seed |${row%,} | $cores | $crashes |"
[ "$crashes" -eq 0 ]
