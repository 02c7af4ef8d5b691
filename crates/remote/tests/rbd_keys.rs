//! Clusters whose users have keys.

use crate::rbd::{open, refusal};
use uext4_blockdev::{Error, WriteDurability};
use uext4_testkit::{Ceph, Need, needs};

#[test]
fn users_do_what_their_keys_allow() {
    needs!(Need::Ceph);
    let ceph = Ceph::with_keys();
    let image = ceph.image(8, &[]);
    let (writer, reader) = ("profile rbd pool=rbd", "profile rbd-read-only pool=rbd");
    ceph.add_user("writer", &["mon", "profile rbd", "osd", writer]);
    ceph.add_user("reader", &["mon", "profile rbd-read-only", "osd", reader]);
    ceph.add_user("stranger", &["mon", "profile rbd"]);
    let by = |name: &str| format!("{}&id={name}", image.spec());
    let device = open(&by("writer"), true, false).unwrap();
    device.write_at(&[7; 4096], 4096, WriteDurability::Fua).unwrap();
    // Another user is kept out like any client.
    assert!(matches!(open(&image.spec(), true, false), Err(Error::InUse(_))));
    drop(device);
    let mut read = [0; 4096];
    open(&by("reader"), false, false).unwrap().read_at(&mut read, 4096).unwrap();
    assert_eq!(read, [7; 4096]);
    let writes = open(&by("reader"), true, false).unwrap_err();
    assert!(matches!(&writes, Error::Remote { errno: libc::EPERM | libc::EROFS, .. }), "{writes:?}");
    let (errno, said) = refusal(&by("stranger"));
    assert_eq!(errno, libc::EPERM, "{said}");
    let (errno, said) = refusal(&by("nobody"));
    assert!(errno == libc::EACCES && said.contains("refuses the user client.nobody"), "{errno} {said}");
}
