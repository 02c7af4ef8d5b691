#!/usr/bin/env bash
# `make deb`: one Debian package, target/deb/uext4_VERSION_ARCH.deb, with the command, its manual pages and completions,
# the C library with what compilers need, and the engine for the fio of this machine (left out if its headers are not to
# be had: scripts/fio-engine.sh). REVISION (1) is the Debian revision.
set -eu
cd "$(dirname "$0")/.."
. scripts/target.sh
out=$target/deb
tree=$out/tree
say() { echo "deb: $*" >&2; }

for program in dpkg-deb dpkg-shlibdeps dpkg-architecture strip; do
    command -v "$program" >/dev/null || { say "needs \`$program\` (Debian: apt-get install dpkg-dev gcc)"; exit 1; }
done
upstream=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
version=$upstream-${REVISION:-1}
soversion=${upstream%%.*}
arch=$(dpkg --print-architecture)
libdir=lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
doc=$tree/usr/share/doc/uext4
# Times in the package are those of the last commit: the same sources give the same package.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
maintainer=$(git log -1 --format='%an <%ae>' 2>/dev/null || true)
[ -z "${DEBEMAIL:-}" ] || maintainer="${DEBFULLNAME:-uext4} <$DEBEMAIL>"
[ -n "$maintainer" ] || maintainer="uext4 <root@$(hostname -f)>"

command_files() {
    build_command
    local uext4=$target/release/uext4
    local completions=$tree/usr/share/bash-completion/completions
    local zsh=$tree/usr/share/zsh/vendor-completions fish=$tree/usr/share/fish/vendor_completions.d
    mkdir -p "$tree/usr/share/man/man1" "$completions" "$zsh" "$fish"
    install -D -m 755 "$uext4" "$tree/usr/bin/uext4"
    strip --remove-section=.comment --remove-section=.note "$tree/usr/bin/uext4"
    "$uext4" man --dir "$tree/usr/share/man/man1"
    # mount(8) looks for them; /sbin is /usr/sbin.
    mkdir -p "$tree/usr/sbin"
    for helper in mount.fuse.uext4 mount.uext4 umount.fuse.uext4 umount.uext4; do
        ln -s ../bin/uext4 "$tree/usr/sbin/$helper"
    done
    install -D -m 644 scripts/uext4-mount@.service "$tree/usr/lib/systemd/system/uext4-mount@.service"
    gzip -9n "$tree"/usr/share/man/man1/*.1
    "$uext4" completions bash > "$completions/uext4"
    "$uext4" completions zsh > "$zsh/_uext4"
    "$uext4" completions fish > "$fish/uext4.fish"
}

library_files() {
    PREFIX=/usr LIBDIR=$libdir DESTDIR=$tree scripts/capi.sh install
    # Half a hundred MB of LLVM's bitcode, which no C compiler takes.
    strip --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd --remove-section=.comment \
        --remove-section=.note --enable-deterministic-archives "$tree/usr/$libdir/libuext4.a"
    chmod 644 "$tree/usr/$libdir/libuext4.so.$upstream"
    strip --strip-unneeded --remove-section=.comment --remove-section=.note "$tree/usr/$libdir/libuext4.so.$upstream"
}

# Sets `suggests`: what the command loads when it needs it, and fio if the engine is in the package.
engine_files() {
    local status=0 fio
    suggests="libnbd0"
    fio=$(dpkg-query -W -f '${Version}' fio 2>/dev/null) || { say "no fio of a Debian package: no engine"; return 0; }
    if [ -z "${FIO_ENGINE_BUILT:-}" ] || [ ! -e "$target/fio/uext4.so" ]; then
        scripts/fio-engine.sh || status=$?
        [ "$status" -ne 3 ] || { say "no headers of fio $fio: no engine"; return 0; }
        [ "$status" -eq 0 ] || exit "$status"
    fi
    install -D -m 644 "$target/fio/uext4.so" "$tree/usr/$libdir/fio/uext4.so"
    strip --strip-unneeded --remove-section=.comment --remove-section=.note "$tree/usr/$libdir/fio/uext4.so"
    # The engine's ABI is that of exactly this fio.
    suggests="$suggests, fio (= $fio)"
}

# The crates that are linked in, as `name version: licence`.
linked_crates() {
    cargo tree --locked -p uext4-cli -p uext4-capi -e normal,no-proc-macro --prefix none -f '{p}: {l}' |
        grep -v '^uext4\|^$' | sed 's/ (\*)$//' | sort -u
}

documents() {
    local year
    year=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y)
    mkdir -p "$doc"
    cp -r README.md ARCHITECTURE.md docs "$doc/"
    gzip -9nc CHANGELOG.md > "$doc/changelog.gz"
    gzip -9nc > "$doc/changelog.Debian.gz" <<CHANGES
uext4 ($version) unstable; urgency=medium

  * Built by scripts/deb.sh; changelog.gz tells what is new.

 -- $maintainer  $(LC_ALL=C date -R -u -d "@$SOURCE_DATE_EPOCH")
CHANGES
    {
        cat <<'LICENCES'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: uext4
Comment: The programs hold these crates, each under its own licence:
LICENCES
        linked_crates | sed 's/^/ /'
        printf '\nFiles: *\nCopyright: %s The uext4 authors\nLicense: Expat or Apache-2.0\n' "$year"
        printf '\nFiles: usr/%s/fio/uext4.so\nCopyright: %s The uext4 authors\nLicense: GPL-2\n' "$libdir" "$year"
        printf 'Comment: fio/uext4.c, built with headers of fio, linked with the library.\n'
        printf '\nLicense: Expat\n'
        sed -n '/^Permission/,$s/^$/./; /^Permission/,$s/^/ /p' LICENSE-MIT
        printf '\nLicense: Apache-2.0\n On Debian systems: /usr/share/common-licenses/Apache-2.0\n'
        printf '\nLicense: GPL-2\n On Debian systems: /usr/share/common-licenses/GPL-2\n'
    } > "$doc/copyright"
}

# The packages of the shared libraries that the programs need.
depends() {
    rm -rf "$out/shlibdeps"
    mkdir -p "$out/shlibdeps/debian"
    printf 'Source: uext4\n\nPackage: uext4\nArchitecture: any\n' > "$out/shlibdeps/debian/control"
    # What the engine takes from fio itself is not found in a library; that is not worth a warning.
    (cd "$out/shlibdeps" && find "$tree/usr/bin" "$tree/usr/$libdir" -type f \( -name uext4 -o -name '*.so*' \) \
        -exec dpkg-shlibdeps -O --warnings=0 {} + | sed 's/^shlibs:Depends=//')
}

control_files() {
    mkdir "$tree/DEBIAN"
    (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) > "$tree/DEBIAN/md5sums"
    echo "activate-noawait ldconfig" > "$tree/DEBIAN/triggers"
    echo "libuext4 $soversion uext4 (>= $upstream)" > "$tree/DEBIAN/shlibs"
    cat > "$tree/DEBIAN/control" <<CONTROL
Package: uext4
Version: $version
Architecture: $arch
Maintainer: $maintainer
Section: admin
Priority: optional
Installed-Size: $(du -sk --apparent-size "$tree/usr" | cut -f 1)
Depends: $(depends)
Recommends: fuse3
${suggests:+Suggests: $suggests
}Provides: libuext4-$soversion (= $version), libuext4-dev (= $version)
Description: ext4 volumes in user space: command, C library, fio engine
 Opens real ext4 volumes (image files, partitions, devices) without root and
 without a mount, by direct I/O at the speed of the device, and journals what
 it changes, so that Linux can mount them at any time.
 .
 The command uext4 looks into volumes, copies files and trees, makes, checks
 and measures them. The library libuext4 does this for C programs. The fio
 engine, if it is in this build, works with exactly the suggested fio.
CONTROL
}

umask 022
rm -rf "$tree"
mkdir -p "$tree"
command_files
library_files
engine_files
documents
control_files
rm -f "$out"/uext4_*.deb
dpkg-deb --root-owner-group --build "$tree" "$out/uext4_${version}_$arch.deb" >&2
rm -rf "$tree" "$out/shlibdeps"
say "built $out/uext4_${version}_$arch.deb ($(du -h "$out/uext4_${version}_$arch.deb" | cut -f 1))"
