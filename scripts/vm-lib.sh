# Functions of the scripts that boot a distribution's stock kernel in QEMU: sourced, not run. They keep downloads in
# $cache (target/vm) and the kernel in $kernel; $what names the script in a skip. KERNEL=backports takes the kernel of
# Debian's backports suite instead.
. scripts/target.sh
cache=$target/vm
kernel=$cache/kernel${KERNEL:+-$KERNEL}
mkdir -p "$cache"
case "${KERNEL:-}" in ''|backports) ;; *) echo "KERNEL=$KERNEL: only backports is known" >&2; exit 2 ;; esac

say() { printf 'vm: %s\n' "$*" >&2; }

# skip REASON: the same line and the same log as the tests of the workspace.
skip() {
    [ "${UEXT4_REQUIRE:-}" != all ] || { say "$1, and UEXT4_REQUIRE=all forbids a skip"; exit 1; }
    echo "SKIP $what: $1"
    [ -z "${UEXT4_SKIP_LOG:-}" ] || echo "SKIP $what: $1" >> "$UEXT4_SKIP_LOG"
    exit 0
}

PATH=$PATH:/usr/sbin:/sbin

# needs PROGRAM...: skips without them.
needs() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || skip "needs \`$program\` (scripts/setup.sh as root installs it)"
    done
}

# apt with package lists of our own: for a machine whose lists are absent, and for an ordinary user.
private_apt() {
    local lists=$cache/lists${KERNEL:+-$KERNEL} sources=()
    mkdir -p "$lists/partial" "$cache/archives/partial"
    if [ -n "${KERNEL:-}" ]; then
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian" \
            "$(. /etc/os-release && echo "$VERSION_CODENAME")-$KERNEL main" > "$lists.list"
        sources=(-o Dir::Etc::sourcelist="$lists.list" -o Dir::Etc::sourceparts=/dev/null)
    fi
    "$@" "${sources[@]}" -o Dir::State::lists="$lists" -o Dir::Cache="$cache/archives" -o APT::Sandbox::User=root
}

# The packages that hold the stock kernel and its modules.
kernel_packages() {
    local apt=$1 meta
    for meta in linux-image-amd64 linux-image-generic; do
        $apt apt-cache depends "$meta" 2>/dev/null |
            sed -n 's/^ *Depends: \(linux-\(image\|modules\)-[^<>]*[0-9].*\)/\1/p' | grep . && return 0
    done
    return 0
}

# Unpacks the newest kernel into $kernel; a kernel that is already there is kept.
fetch_kernel() {
    [ ! -e "$kernel/complete" ] || return 0
    say "downloading a kernel"
    local apt="env" packages="" package
    [ -n "${KERNEL:-}" ] || packages=$(kernel_packages "$apt")
    if [ -z "$packages" ] || ! (cd "$cache" && apt-get -qq download $packages >/dev/null 2>&1); then
        apt=private_apt
        private_apt apt-get -qq update
        packages=$(kernel_packages "$apt")
        [ -n "$packages" ] || { say "no kernel package in the package lists"; exit 1; }
        (cd "$cache" && private_apt apt-get -qq download $packages)
    fi
    # Ubuntu splits modules off into a dependency of the image.
    for package in $packages; do
        local extra
        extra=$($apt apt-cache depends "$package" | sed -n 's/^ *Depends: \(linux-modules-[^ ]*\)/\1/p')
        [ -z "$extra" ] || (cd "$cache" && $apt apt-get -qq download $extra >/dev/null)
    done
    rm -rf "$kernel"
    mkdir -p "$kernel"
    for package in "$cache"/linux-*.deb; do
        dpkg-deb -x "$package" "$kernel"
        rm "$package"
    done
    local release
    release=$(basename "$(echo "$kernel"/boot/vmlinuz-*)" | sed 's/^vmlinuz-//')
    [ -d "$kernel/lib" ] || mv "$kernel/usr/lib" "$kernel/lib"
    depmod -b "$kernel" "$release"
    echo "$release" > "$kernel/complete"
}

# add_programs ROOT FOLDER NAME...: copies programs with the shared libraries they need (a static one needs
# none).
add_programs() {
    local root=$1 folder=$2 program library
    shift 2
    for program in "$@"; do
        program=$(command -v "$program")
        install -D "$program" "$root/$folder/$(basename "$program")"
        { ldd "$program" 2>/dev/null || true; } | { grep -o '/[^ ]*' || true; } | while read -r library; do
            [ -e "$root$library" ] || install -D "$library" "$root$library"
        done
    done
}

# add_modules ROOT RELEASE MODULE...: copies modules with those they depend on, uncompressed.
add_modules() {
    local root=$1 release=$2 file plain
    shift 2
    modprobe -d "$kernel" -S "$release" -a --show-depends "$@" | sed -n 's/^insmod \([^ ]*\).*/\1/p' |
        sort -u | while read -r file; do
        plain=$root${file#"$kernel"}
        mkdir -p "$(dirname "$plain")"
        case "$file" in
            *.zst) zstd -q -d "$file" -o "${plain%.zst}" ;;
            *.xz) xz -d -c "$file" > "${plain%.xz}" ;;
            *) cp "$file" "$plain" ;;
        esac
    done
    cp "$kernel/lib/modules/$release"/modules.{builtin,builtin.modinfo,order} \
        "$root/lib/modules/$release/"
    depmod -b "$root" "$release"
}

# Statically linked builds in a target folder of their own, by the profile $profile.
static_cargo() {
    RUSTFLAGS="-C target-feature=+crt-static" CARGO_TARGET_DIR=$cache/cargo \
        cargo "$@" --quiet --profile "${profile:-release}" --target x86_64-unknown-linux-gnu
}
