#!/usr/bin/env bash
# `make demo`: what is needed is set up, the program is built (which says how long that takes the first time), and
# `uext4 bench` measures on volumes of its own.
set -eu
cd "$(dirname "$0")/.."
scripts/setup.sh demo
. scripts/target.sh
program=$target/release/uext4
if [ ! -e "$program" ]; then
    echo "demo: the first build fetches and compiles all libraries and optimises across them:" \
        "two to four minutes on two processors. The measurement takes about three more."
fi
cargo build --release -p uext4-cli
results=$target/bench
exec "$program" bench --json "$results.json" --html "$results.html"
