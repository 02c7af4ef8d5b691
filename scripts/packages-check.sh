#!/usr/bin/env bash
# Packs every crate that is published, and compiles what came out: a source that lies outside its crate, or a crate
# that needs one that is not published, shows here. The packages see each other as they would from a registry. With
# `--verify` cargo does this itself, from nothing: the same answer, minutes later. With `--changed` only if a manifest
# or a line that includes another file differs from what scripts/packages.sum says was checked last.
set -eu
cd "$(dirname "$0")/.."
sum() {
    {
        cat Cargo.toml crates/*/Cargo.toml
        grep -rnE '^ *#\[path|include(_str|_bytes)?!' crates/*/src --include '*.rs' || true
    } | sha256sum | cut -d' ' -f1
}
if [ "${1:-}" = --changed ] && [ "$(sum)" = "$(cat scripts/packages.sum 2>/dev/null)" ]; then
    echo "packages-check: no manifest changed since the last check"
    exit
fi
. scripts/target.sh
out=$target/package
packed=(--workspace --allow-dirty --quiet)
for manifest in crates/*/Cargo.toml python/Cargo.toml vm/*/Cargo.toml xtask/Cargo.toml; do
    ! grep -q '^publish = false$' "$manifest" ||
        packed+=(--exclude "$(sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n 1)")
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
rm -f "$out"/*.crate

# Without the notes that tests stay here.
pack() {
    local status=0
    cargo package "${packed[@]}" "$@" 2> "$target/package.log" || status=$?
    grep -v -e '^warning: ignoring \(test\|example\) ' "$target/package.log" >&2 || true
    return "$status"
}

if [ "${1:-}" = --verify ]; then
    pack
    exit
fi
pack --no-verify
check=$out/check
rm -rf "$check"
mkdir -p "$check"
members="" patches=""
for crate in "$out"/*.crate; do
    folder=$(basename "$crate" .crate)
    # As new files: their times in the archive are the same each time, and cargo would take them for what it compiled.
    tar -x -m -C "$check" -f "$crate"
    for file in README.md LICENSE-MIT LICENSE-APACHE; do
        [ -f "$check/$folder/$file" ] || { echo "$folder lacks $file"; exit 1; }
    done
    members="$members\"$folder\", "
    patches="$patches${folder%-"$version"} = { path = \"$folder\" }"$'\n'
done
[ -n "$members" ] || { echo "nothing was packed"; exit 1; }
# The profile of the workspace, so that what it compiled of other crates is taken.
{
    printf '[workspace]\nresolver = "3"\nmembers = [%s]\n\n' "${members%, }"
    printf '[patch.crates-io]\n%s\n' "$patches"
    sed -n '/^\[profile\.dev/,/^$/p' Cargo.toml
} > "$check/Cargo.toml"
cp Cargo.lock "$check/"
cargo check --quiet --manifest-path "$check/Cargo.toml" --workspace
echo "packages-check: $(find "$check" -mindepth 1 -maxdepth 1 -type d | wc -l) packages compile"
sum > scripts/packages.sum
rm -rf "$check"
