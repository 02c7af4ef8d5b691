//! How the program is linked.

fn main() {
    // Code lies as far from the begin of the file as in memory. Linux's `perf` takes one for the other when it sets
    // static probes (seen with 6.1), and would set them in the middle of instructions. GNU's linker places code so by
    // itself, and ignores this.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,separate-loadable-segments");
    println!("cargo::rerun-if-changed=build.rs");
}
