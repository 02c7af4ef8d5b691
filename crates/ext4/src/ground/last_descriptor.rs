//! The group descriptor that was stored last, decoded.

use parking_lot::Mutex;
use uext4_ondisk::Group;
use uext4_ondisk::ext4::GroupDescriptor;

/// The group descriptor that was stored last: most changes are in the group of the change before. Only who stores one
/// sets it, under the lock of the groups, so it is never older than the block.
#[derive(Default)]
pub(crate) struct LastDescriptor(Mutex<Option<(Group, GroupDescriptor)>>);

impl LastDescriptor {
    /// That of a group, if it is the one.
    pub(crate) fn of(&self, group: Group) -> Option<GroupDescriptor> {
        self.0.lock().filter(|(stored, _)| *stored == group).map(|(_, descriptor)| descriptor)
    }

    pub(crate) fn set(&self, stored: Option<(Group, GroupDescriptor)>) {
        *self.0.lock() = stored;
    }
}
