#!/usr/bin/env bash
# `make fio-engine`: the engine target/fio/uext4.so for the installed fio. Its headers have to be of exactly that
# version, so they come from Debian's source package, through apt lists of their own; FIO_SOURCE names a configured
# source tree instead. Exit status 3: there are no headers to be had here.
set -eu
cd "$(dirname "$0")/.."
out=$PWD/${CARGO_TARGET_DIR:-target}/fio
mkdir -p "$out"
say() { echo "fio-engine: $*" >&2; }

command -v fio >/dev/null || { say "no fio on this machine (Debian: apt-get install fio)"; exit 1; }
installed=$(fio --version)
version=${installed#fio-}

# Fetches and configures the headers of the installed fio.
fetch() {
    local package tree=$1 apt
    package=$(dpkg-query -W -f '${Version}' fio 2>/dev/null) ||
        { say "fio is not of Debian's package: set FIO_SOURCE to the source of $installed"; exit 1; }
    say "fetching the source of fio $package through apt (only its headers are used)"
    mkdir -p "$out/apt/lists/partial"
    local format='deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)'
    apt-get indextargets --format "$format" 'Created-By: Packages' 'Origin: Debian' |
        sort -u > "$out/apt/sources.list"
    [ -s "$out/apt/sources.list" ] || { say "apt knows no packages: apt-get update"; exit 1; }
    local options=(-q -o "Dir::Etc::SourceList=$out/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$out/apt/lists" -o "Dir::Cache=$out/apt" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update >&2
    (cd "$out/apt" && apt-get "${options[@]}" source --download-only "fio=$package" >&2)
    rm -rf "$tree" "$tree.new"
    mkdir "$tree.new"
    tar -x --strip-components=1 -C "$tree.new" -f "$out"/apt/fio_*.orig.tar.*[!c]
    say "configuring it"
    (cd "$tree.new" && ./configure > configure.log 2>&1) || { tail "$tree.new/configure.log" >&2; exit 1; }
    mv "$tree.new" "$tree"
}

source=${FIO_SOURCE:-$out/fio-$version}
if [ ! -e "$source/config-host.h" ]; then
    [ -z "${FIO_SOURCE:-}" ] || { say "$source is not configured"; exit 1; }
    trap '[ $? -eq 0 ] || { say "no headers of $installed: set FIO_SOURCE to its configured source"; exit 3; }' EXIT
    fetch "$source"
    trap - EXIT
fi

cargo build --release --quiet -p uext4-capi
gcc -std=gnu99 -O2 -g -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Werror -D_GNU_SOURCE -shared -fPIC \
    -isystem "$source" -I crates/capi/include -o "$out/uext4.so.new" fio/uext4.c \
    "${CARGO_TARGET_DIR:-target}/release/libuext4_capi.a" -Wl,--version-script=fio/exports.map -lpthread -ldl -lm
mv "$out/uext4.so.new" "$out/uext4.so"
say "built $out/uext4.so for $installed"
