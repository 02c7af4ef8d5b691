//! What a volume and a file are opened by.

mod common;

use common::open_ro;
use common::sample::sample;
use uext4::{Error, Ino, OpenOptions};

#[test]
fn a_file_opened_for_nothing_is_an_error() {
    let volume = open_ro(sample().device());
    let ino = volume.resolve("/data", true).unwrap();
    let nothing = [OpenOptions::new(), OpenOptions::default(), OpenOptions::new().read(false).write(false)];
    for options in nothing {
        // Before anything is looked up, as std has it: what is missing or no file makes no difference.
        for path in ["/data", "/missing", "/dir"] {
            let error = volume.open_file(path, options.clone()).unwrap_err();
            assert!(matches!(&error, Error::Invalid(_)) && error.errno() == 22, "{path}: {error}");
            assert!(error.to_string().contains("neither for reading nor for writing"), "{error}");
        }
        for ino in [ino, Ino::ROOT] {
            let error = volume.open_inode(ino, options.clone()).unwrap_err();
            assert_eq!(error.errno(), 22, "{ino}: {error}");
        }
    }
    let read = OpenOptions::new().read(true);
    volume.open_file("/data", read.clone()).unwrap();
    assert_eq!(volume.open_file("/missing", read).unwrap_err().errno(), 2);
}
