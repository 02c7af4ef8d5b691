#!/usr/bin/env bash
# Makes a bare Debian or Ubuntu machine with a Rust toolchain ready for the make targets. Quick when all is
# there. As root it installs what is missing; without root it names what is missing and goes on: tests skip
# what they lack.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }

toolchain() {
    command -v cargo >/dev/null || { say "no Rust toolchain: install one from https://rustup.rs"; exit 1; }
    local want have
    want=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    have=$(rustc --version | cut -d' ' -f2)
    if [ "$(printf '%s\n%s\n' "$want" "$have" | sort -V | head -n 1)" != "$want" ]; then
        say "Rust $want or newer is needed, this is $have"
        exit 1
    fi
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
    local package file
    while read -r package file; do
        case "$package" in ''|'#'*) continue ;; esac
        # On systems with /sbin and /usr/sbin apart, a program may live in either.
        [ -e "$file" ] || [ -e "/usr$file" ] || printf '%s ' "$package"
    done < scripts/packages.txt
}

packages() {
    local missing
    missing=$(missing_packages)
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        say "missing (tests that need them are skipped): $missing"
        say "to install them: apt-get install --no-install-recommends $missing"
        return 0
    fi
    command -v apt-get >/dev/null || { say "missing: $missing, and no apt-get to install them"; exit 1; }
    say "installing $missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086  # a list of words
    if ! apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1; then
        apt-get update -qq
        apt-get install -qq -y --no-install-recommends $missing >/dev/null
    fi
    missing=$(missing_packages)
    [ -z "$missing" ] || { say "still missing after the installation: $missing"; exit 1; }
}

toolchain
packages
