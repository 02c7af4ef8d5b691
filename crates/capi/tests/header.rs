//! The header is what cbindgen makes of the crate.

use std::path::Path;

#[test]
fn the_header_is_made_from_the_crate() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(home.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new().with_crate(home).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    let path = home.join("include/uext4.h");
    if std::env::var_os("UEXT4_UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(
        kept == text,
        "include/uext4.h is old: UEXT4_UPDATE=1 cargo test -p uext4-capi --test suite header"
    );
}
