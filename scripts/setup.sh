#!/usr/bin/env bash
# Makes a bare Debian or Ubuntu machine with a Rust toolchain ready for the make targets. Quick when all is
# there. As root it installs what is missing; without root it names what is missing and goes on: tests skip
# what they lack.
#   scripts/setup.sh [demo]
# With `demo`: for `make demo` alone, which needs a linker and e2fsprogs and skips nothing.
set -eu
cd "$(dirname "$0")/.."
target=${1:-test}

say() { printf 'setup: %s\n' "$*" >&2; }

toolchain() {
    if ! command -v cargo >/dev/null; then
        say "no Rust toolchain (cargo) on PATH; to install one, and to have it on this shell's PATH:"
        say "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y && . ~/.cargo/env"
        exit 1
    fi
    local want have
    want=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    have=$(rustc --version | cut -d' ' -f2)
    if [ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n 1)" != "$want" ]; then
        say "Rust $want or newer is needed, this is $have"
        exit 1
    fi
    [ "$target" != demo ] || return 0
    local component missing=()
    for component in rustfmt clippy; do
        cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 || missing+=("$component")
    done
    [ "${#missing[@]}" -eq 0 ] && return
    command -v rustup >/dev/null || { say "missing: ${missing[*]}, and no rustup to add them"; exit 1; }
    say "adding ${missing[*]}"
    rustup component add "${missing[@]}"
}

missing_packages() {
    local package file for
    while read -r package file for _; do
        case "$package" in ''|'#'*) continue ;; esac
        [ "$target" != demo ] || [ "$for" = demo ] || continue
        # On systems with /sbin and /usr/sbin apart, a program may live in either.
        [ -e "$file" ] || [ -e "/usr$file" ] || printf '%s ' "$package"
    done < scripts/packages.txt
}

packages() {
    local missing
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        local install="as root: apt-get install --no-install-recommends $missing"
        [ "$target" != demo ] || { say "missing: $missing"; say "$install"; exit 1; }
        say "missing (tests that need them are skipped): $missing"
        say "to install them, $install"
        return 0
    fi
    command -v apt-get >/dev/null || { say "missing: $missing, and no apt-get to install them"; exit 1; }
    say "installing $missing"
    export DEBIAN_FRONTEND=noninteractive
    # Quiet, but for what is fetched and unpacked: qemu and its libraries take a while.
    # shellcheck disable=SC2086  # a list of words
    if ! apt-get install -q -y --no-install-recommends $missing 2>/dev/null; then
        say "reading the package lists first"
        apt-get update -q
        apt-get install -q -y --no-install-recommends $missing
    fi
    missing=$(missing_packages)
    [ -z "$missing" ] || { say "still missing after the installation: $missing"; exit 1; }
}

toolchain
packages
