//! Access control lists in both forms.

use uext4_ondisk::CorruptKind;
use uext4_ondisk::ext4::{Acl, AclEntry, AclTag};

fn sample() -> Acl {
    let entry = |tag, permissions| AclEntry { tag, permissions };
    Acl {
        entries: vec![
            entry(AclTag::Owner, 6),
            entry(AclTag::User(1000), 5),
            entry(AclTag::OwningGroup, 4),
            entry(AclTag::Group(u32::MAX - 1), 2),
            entry(AclTag::Mask, 7),
            entry(AclTag::Other, 0),
        ],
    }
}

#[test]
fn both_forms_go_and_come_back() {
    let acl = sample();
    assert_eq!(acl.encode().len(), 4 + 4 * 4 + 2 * 8);
    assert_eq!(acl.encode_xattr().len(), 4 + 6 * 8);
    assert_eq!(Acl::decode(&acl.encode()).unwrap(), acl);
    assert_eq!(Acl::decode_xattr(&acl.encode_xattr()).unwrap(), acl);
    let text = "user::rw-,user:1000:r-x,group::r--,group:4294967294:-w-,mask::rwx,other::---";
    assert_eq!(acl.to_string(), text);
    assert_eq!(&acl.encode_xattr()[..12], [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
}

#[test]
fn what_is_damaged_is_refused() {
    let bytes = sample().encode();
    for length in 0..bytes.len() {
        let cut = Acl::decode(&bytes[..length]);
        // Short entries may end anywhere between two of them.
        assert!(cut.is_err() || [4, 8, 16, 20, 28, 32].contains(&length), "{length}");
    }
    assert_eq!(Acl::decode(&[2, 0, 0, 0]).unwrap_err().kind, CorruptKind::AclVersion);
    assert_eq!(Acl::decode(&[1, 0, 0, 0, 3, 0, 0, 0]).unwrap_err().kind, CorruptKind::AclEntry);
    assert_eq!(Acl::decode(&[1, 0, 0, 0, 1, 0, 8, 0]).unwrap_err().kind, CorruptKind::AclEntry);
    assert_eq!(Acl::decode(&[1, 0, 0, 0]).unwrap().entries, []);
}
