//! How the program is linked.

fn main() {
    // Every part of the file lies as far from its begin as in memory. Linux's `perf` takes one for the other when it
    // sets static probes (seen with 6.1), and would set them in the middle of instructions. GNU's linker does so by
    // itself and ignores this.
    println!("cargo::rustc-link-arg-bins=-Wl,-z,separate-loadable-segments");
    println!("cargo::rerun-if-changed=build.rs");
}
