//! `Node::permits` answers as the kernel does.

use rustix::fs::{Access as Asked, AtFlags, Mode, OFlags, XattrFlags, accessat};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use uext4::{Access, Caller, Volume, VolumeOptions};
use uext4_testkit::{Need, Rng, VolumeBuilder, needs, with_kernel};

const INODES: usize = 60;
const USERS: [u32; 5] = [0, 1, 1000, 1001, 70_000];

fn name(n: usize) -> String {
    format!("{}{n}", if n.is_multiple_of(3) { "directory" } else { "file" })
}

/// An access control list in the form of the system call: the owner's entry, users, groups, mask, others.
fn any_acl(rng: &mut Rng) -> Vec<u8> {
    let mut value = vec![2, 0, 0, 0];
    let mut entry = |rng: &mut Rng, tag: u16, id: u32| {
        value.extend(tag.to_le_bytes());
        value.extend((rng.below(8) as u16).to_le_bytes());
        value.extend(id.to_le_bytes());
    };
    let mut users = USERS.to_vec();
    users.retain(|_| rng.chance(50));
    let mut groups = USERS.to_vec();
    groups.retain(|_| rng.chance(50));
    entry(rng, 1, u32::MAX);
    users.iter().for_each(|id| entry(rng, 2, *id));
    entry(rng, 4, u32::MAX);
    groups.iter().for_each(|id| entry(rng, 8, *id));
    if !(users.is_empty() && groups.is_empty()) || rng.chance(50) {
        entry(rng, 16, u32::MAX);
    }
    entry(rng, 32, u32::MAX);
    value
}

fn fill(root: &Path, rng: &mut Rng) {
    for n in 0..INODES {
        let path = root.join(name(n));
        if n.is_multiple_of(3) {
            std::fs::create_dir(&path).unwrap();
        } else {
            std::fs::write(&path, b"x").unwrap();
        }
        std::os::unix::fs::chown(&path, Some(*rng.pick(&USERS)), Some(*rng.pick(&USERS))).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(rng.below(0o1000) as u32)).unwrap();
        if rng.chance(60) {
            let acl = any_acl(rng);
            rustix::fs::setxattr(&path, "system.posix_acl_access", &acl, XattrFlags::empty()).unwrap();
        }
    }
}

fn any_callers(rng: &mut Rng) -> Vec<Caller> {
    let caller = |rng: &mut Rng| {
        let groups: Vec<u32> = USERS.into_iter().filter(|_| rng.chance(30)).collect();
        Caller::new(*rng.pick(&USERS), *rng.pick(&USERS)).groups(groups)
    };
    (0..20).map(|_| caller(rng)).collect()
}

/// The kernel's answers for one caller, whose identity this thread takes for the rest of its life.
fn asked(root: &OwnedFd, caller: &Caller) -> Vec<bool> {
    let (uid, gid) = (Uid::from_raw(caller.uid), Gid::from_raw(caller.gid));
    let groups: Vec<Gid> = caller.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    set_thread_groups(&groups).unwrap();
    set_thread_res_gid(gid, gid, gid).unwrap();
    set_thread_res_uid(uid, uid, uid).unwrap();
    let ask = |n, bits| {
        accessat(root, name(n), Asked::from_bits_retain(bits), AtFlags::empty())
            .map(|()| true)
            .or_else(|error| if error == rustix::io::Errno::ACCESS { Ok(false) } else { Err(error) })
            .unwrap()
    };
    (0..INODES).flat_map(|n| (1..8).map(move |bits| ask(n, bits))).collect()
}

#[test]
fn root_callers_may_do_what_the_kernel_lets_them_do() {
    needs!(Need::Loop, Need::Tool("mke2fs"));
    let volume = VolumeBuilder::new(16 << 20).build();
    let mut rng = Rng::new(0xacce55);
    let callers = any_callers(&mut rng);
    let expected: Vec<Vec<bool>> = with_kernel(volume.path(), "acl", |root| {
        fill(root, &mut rng);
        let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let ask = |caller| std::thread::scope(|scope| scope.spawn(|| asked(&root, caller)).join().unwrap());
        callers.iter().map(ask).collect()
    });
    let opened = Volume::open(volume.path(), VolumeOptions::read_only()).unwrap();
    let mut counts = [0; 2];
    for (caller, expected) in callers.iter().zip(expected) {
        let mut expected = expected.into_iter();
        for n in 0..INODES {
            let node = opened.node_at(name(n), true).unwrap();
            for bits in 1..8 {
                let (found, expected) =
                    (node.permits(caller, Access::from_bits_retain(bits)).unwrap(), expected.next().unwrap());
                assert_eq!(found, expected, "{} {bits} {caller:?} {:?}", name(n), node.attributes());
                counts[usize::from(found)] += 1;
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 1000), "{counts:?}");
}
