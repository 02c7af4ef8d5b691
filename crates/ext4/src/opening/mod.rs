//! Opening, in one direction: superblock, features, multi-mount protection, journal, recovery, report.

pub(crate) mod close;
pub(crate) mod external;
pub(crate) mod fast_commit;
pub(crate) mod heartbeat;
pub(crate) mod identify;
pub(crate) mod journal;
pub(crate) mod mmp;
pub(crate) mod on_device;
pub(crate) mod recovery;
pub(crate) mod state;
pub(crate) mod superblock;
