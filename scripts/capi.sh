#!/usr/bin/env bash
# `make capi`: target/capi/ with libuext4.so, libuext4.a, uext4.h and uext4.pc. `scripts/capi.sh install` copies them to
# DESTDIR/PREFIX, the libraries to LIBDIR (lib) in there; `scripts/capi.sh pc` only prints uext4.pc. The shared library
# is linked from the archive, because rustc gives symbols no versions.
set -eu
cd "$(dirname "$0")/.."
. scripts/target.sh
out=$target/capi
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-lib}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
soname=libuext4.so.${version%%.*}

build() {
    build_library
    mkdir -p "$out"
    cp "$target/release/libuext4_capi.a" "$out/libuext4.a"
    cp crates/capi/include/uext4.h "$out/uext4.h"
    cc -shared -o "$out/libuext4.so.$version" -Wl,-soname,"$soname" -Wl,--version-script=crates/capi/libuext4.map \
        -Wl,--whole-archive "$out/libuext4.a" -Wl,--no-whole-archive -Wl,--gc-sections -lpthread -ldl -lm -lgcc_s
    ln -sf "libuext4.so.$version" "$out/$soname"
    ln -sf "$soname" "$out/libuext4.so"
}

pkgconfig() {
    cat <<PC
prefix=$prefix
libdir=\${prefix}/$libdir
includedir=\${prefix}/include

Name: uext4
Description: ext4 volumes in user space
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -luext4
Libs.private: -lpthread -ldl -lm -lgcc_eh
PC
}

if [ "${1:-}" = pc ]; then
    pkgconfig
    exit
fi
build
pkgconfig > "$out/uext4.pc"
[ "${1:-}" = install ] || exit 0
to=${DESTDIR:-}$prefix
install -d "$to/$libdir/pkgconfig" "$to/include"
install -m 644 "$out/libuext4.a" "$to/$libdir/"
install -m 755 "$out/libuext4.so.$version" "$to/$libdir/"
cp -d "$out/$soname" "$out/libuext4.so" "$to/$libdir/"
install -m 644 "$out/uext4.h" "$to/include/"
install -m 644 "$out/uext4.pc" "$to/$libdir/pkgconfig/"
