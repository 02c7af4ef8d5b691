#!/usr/bin/env bash
# `make fio-engine`: the engine target/fio/uext4.so for the installed fio. Its headers have to be of exactly that
# version, so they come from Debian's source package, through apt lists of their own; FIO_SOURCE names a configured
# source tree instead. Exit status 3: there are no headers to be had here.
set -eu
cd "$(dirname "$0")/.."
. scripts/target.sh
out=$target/fio
mkdir -p "$out"
say() { echo "fio-engine: $*" >&2; }
. scripts/apt-source.sh

command -v fio >/dev/null || { say "no fio on this machine (Debian: apt-get install fio)"; exit 1; }
installed=$(fio --version)
version=${installed#fio-}

# Fetches and configures the headers of the installed fio.
fetch() {
    local package tree=$1
    package=$(dpkg-query -W -f '${Version}' fio 2>/dev/null) ||
        { say "fio is not of Debian's package: set FIO_SOURCE to the source of $installed"; exit 1; }
    say "fetching the source of fio $package through apt (only its headers are used)"
    apt_source fio "$package" "$out/apt" "$tree.new"
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

build_library
gcc -std=gnu99 -O2 -g -Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Werror -D_GNU_SOURCE -shared -fPIC \
    -isystem "$source" -I crates/capi/include -o "$out/uext4.so.new" fio/uext4.c \
    "$target/release/libuext4_capi.a" -Wl,--version-script=fio/exports.map -lpthread -ldl -lm
mv "$out/uext4.so.new" "$out/uext4.so"
say "built $out/uext4.so for $installed"
