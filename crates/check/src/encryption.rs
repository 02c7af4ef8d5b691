//! Encrypted inodes: each has an encryption context, and the entries of an encrypted directory have the same policy.
//!
//! Source: `include/uapi/linux/fscrypt.h` and `fs/crypto/fscrypt_private.h` (contexts), `fs/crypto/policy.c`
//! (`fscrypt_has_permitted_context`: what a directory may name).

use crate::kinds;
use crate::report::Findings;
use crate::scan::{Context, Scan};
use crate::shared::Shared;
use uext4::Result;
use uext4_ondisk::ext4::{
    DirEntry, FileType, Inode, InodeFlags, XattrArea, XattrBlock, XattrIndex, XattrValue,
};
use uext4_ondisk::{Pblk, Place};

/// Name of the attribute that contains the context, in the encryption name space.
const CONTEXT: &[u8] = b"c";
/// Bytes of the shortest encrypted name: one block of the cipher.
const NAME_MIN: usize = 16;
/// The policy of a context that was not read because it is in a separate inode (the kernel does that if there is no
/// room elsewhere): it may be any.
const UNREAD: u64 = 0;
/// The policy of contexts of later versions: all are treated as the same.
const LATER: u64 = 1;

/// How an inode is encrypted: inodes of the same policy have the same number.
fn policy(context: &[u8]) -> Option<u64> {
    // Version, modes and flags, then the key's name; the nonce after it differs in each inode.
    let (size, policy) = match context.first()? {
        0 => return None,
        1 => (28, 12),
        2 => (40, 24),
        _ => return Some(LATER),
    };
    let policy = context.get(..policy).filter(|_| context.len() == size)?;
    // A collision of two policies only hides a finding. (FNV-1a.)
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    Some(policy.iter().fold(0xcbf2_9ce4_8422_2325, mix).max(LATER + 1))
}

/// The context among these attributes. (e2fsck accepts an attribute `c` of any name space unknown to it; the kernel
/// does not.)
fn context(area: &XattrArea<'_>) -> Context {
    let value = area.find(XattrIndex::Encryption, CONTEXT).map(|entry| entry.value);
    match value {
        Some(XattrValue::Here(value)) => policy(value).map_or(Context::Damaged, Context::Policy),
        Some(XattrValue::Inode { .. }) => Context::Policy(UNREAD),
        None => Context::Missing,
    }
}

impl Scan<'_, '_> {
    /// Looks for the context of an encrypted inode, among the attributes inside it (`own`) and in its block.
    pub(crate) fn check_context(
        &mut self,
        place: Place,
        inode: &Inode,
        own: Option<&XattrArea<'_>>,
    ) -> Result<()> {
        // An inode waiting for deletion may have lost its attributes.
        if !inode.flags.contains(InodeFlags::ENCRYPT) || inode.links == 0 {
            return Ok(());
        }
        let mut found = own.map_or(Context::Missing, context);
        if found == Context::Missing && inode.xattr_block.get() != 0 {
            found = self.context_in_block(inode.xattr_block)?;
        }
        let wrong = match found {
            Context::Policy(policy) => {
                self.policies.extend(place.inode.map(|ino| (ino.get(), policy)));
                if policy == UNREAD {
                    self.findings.not_examined("encryption contexts", "they lie in inodes of their own");
                }
                return Ok(());
            }
            Context::Damaged => "the encryption context is damaged",
            Context::Missing => "it is encrypted and has no encryption context",
        };
        self.findings.add(&kinds::ENCRYPT_CONTEXT, place, wrong);
        Ok(())
    }

    /// The context in an attribute block. Neighbours may share the block, so the last one is cached.
    fn context_in_block(&mut self, block: Pblk) -> Result<Context> {
        if let Some((last, found)) = self.last_context
            && last == block
        {
            return Ok(found);
        }
        let bytes = self.nodes.block(block.get(), 0)?;
        // The check of all attribute blocks reports damage of the block.
        let found = XattrBlock::decode(bytes, block, &self.shared.lenient)
            .map_or(Context::Missing, |decoded| context(&decoded.area));
        self.last_context = Some((block, found));
        Ok(found)
    }
}

impl Shared<'_> {
    /// How an inode is encrypted; `None` if it is not, or unknown. Available after pass 1.
    pub(crate) fn policy(&self, ino: u32) -> Option<u64> {
        let policies = self.policies.get()?;
        let index = policies.binary_search_by_key(&ino, |(ino, _)| *ino).ok()?;
        Some(policies[index].1)
    }

    /// An entry, neither `.` nor `..`, of a directory that is encrypted by this policy. `found`: the type of its inode.
    pub(crate) fn check_encrypted_entry(
        &self,
        policy: u64,
        place: Place,
        entry: &DirEntry<'_>,
        found: Option<FileType>,
        findings: &mut Findings,
    ) {
        let name = || entry.name.escape_ascii();
        if entry.name.len() < NAME_MIN {
            let text = format_args!("`{}` is too short for an encrypted name", name());
            findings.add(&kinds::ENTRY_NAME, place, text);
        }
        let can_be_encrypted =
            matches!(found, Some(FileType::Regular | FileType::Directory | FileType::Symlink));
        let wrong = match self.policy(entry.inode.get()) {
            Some(other) if other == policy || [other, policy].contains(&UNREAD) => return,
            Some(_) => "is encrypted by another policy",
            None if can_be_encrypted => "is not encrypted",
            None => return,
        };
        let text = format_args!(
            "`{}` names inode {}, which {wrong}, in an encrypted directory",
            name(),
            entry.inode
        );
        findings.add(&kinds::ENCRYPT_POLICY, place, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(version: u8, length: usize, key: u8, nonce: u8) -> Vec<u8> {
        let mut context = vec![0; length];
        let key_at = if version == 1 { 4 } else { 8 };
        (context[0], context[1], context[2], context[key_at], context[length - 1]) =
            (version, 1, 4, key, nonce);
        context
    }

    #[test]
    fn policies_are_told_apart_by_all_but_the_nonce() {
        for (version, length) in [(1, 28), (2, 40)] {
            let one = policy(&made(version, length, 7, 1));
            assert!(one.is_some_and(|policy| policy > LATER));
            assert_eq!(policy(&made(version, length, 7, 2)), one);
            assert_ne!(policy(&made(version, length, 8, 1)), one);
        }
        assert_ne!(policy(&made(1, 28, 7, 1)), policy(&made(2, 40, 7, 1)));
    }

    #[test]
    fn contexts_of_wrong_length_or_version_are_damaged() {
        for damaged in [&[][..], &[0; 28], &made(1, 27, 1, 1), &made(1, 29, 1, 1), &made(2, 28, 1, 1), &[2]] {
            assert_eq!(policy(damaged), None, "{damaged:?}");
        }
        assert_eq!((policy(&[3]), policy(&[9; 64])), (Some(LATER), Some(LATER)));
    }
}
