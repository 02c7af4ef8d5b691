//! The bodies of `Blocks`: changes through each of them, who sees them, and refusals.

use super::{assert_says, image, open};
use crate::ground::blocks::Blocks;
use crate::ground::canvas::{Canvas, Work};
use crate::ground::direct::Direct;
use crate::ground::journaled::Journaled;
use crate::ground::state::Ground;
use crate::{Error, Result, Volume};
use uext4_buffer::BufferState;
use uext4_ondisk::Pblk;
use uext4_testkit::{Need, needs};

/// Unused blocks of a small volume.
const ONE: Pblk = Pblk(3000);
const OTHER: Pblk = Pblk(3001);

fn journaled() -> Volume {
    open(&image(16, &["-b", "1024", "-N", "64"]))
}

fn first_byte(ground: &Ground, block: Pblk) -> u8 {
    ground.cache.read(block.get()).unwrap()[0]
}

/// Changes one block, and initializes and changes another.
fn edit(blocks: &mut impl Blocks) -> Result<()> {
    assert_eq!(blocks.look(ONE, |bytes| bytes[0])?, 0);
    blocks.change(ONE, |bytes| bytes[0] = 7)?;
    blocks.fresh(OTHER, |bytes| {
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes[0] = 8;
    })?;
    blocks.change(OTHER, |bytes| bytes[0] += 1)?;
    assert_eq!(blocks.look(ONE, |bytes| bytes[0])?, 7);
    assert_eq!(blocks.look(OTHER, |bytes| bytes[0])?, 9);
    Ok(())
}

#[test]
fn what_a_handle_changes_is_seen_through_the_cache_and_belongs_to_its_transaction() {
    needs!(Need::Tool("mke2fs"));
    let volume = journaled();
    let state = volume.state();
    let tid = Journaled::run(state, "a test", 3, |blocks| {
        edit(blocks)?;
        assert_eq!(blocks.credits(), 1, "a block is paid for once");
        Ok(blocks.tid())
    })
    .unwrap();
    assert_eq!((first_byte(state, ONE), first_byte(state, OTHER)), (7, 9));
    for block in [ONE, OTHER] {
        let expected = BufferState::InTransaction { tid, modified: true, frozen: None };
        assert_eq!(state.cache.state(block.get()), Some(expected));
    }
    let journal = state.journal.as_ref().unwrap();
    assert!(journal.commit_needed(tid) && journal.running_tid() == Some(tid));
    assert_eq!(journal.stats().modified_blocks, 2);
    state.cache.write_back().unwrap();
    let mut home = crate::BufferPool::new(1024).unwrap().take(1024).unwrap();
    volume.device().read_at(&mut home, ONE.get() * 1024).unwrap();
    assert_eq!(home[0], 0, "nothing goes home before the commit");
}

#[test]
fn a_freed_block_is_revoked_and_has_no_access() {
    needs!(Need::Tool("mke2fs"));
    let volume = journaled();
    let journal = volume.state().journal.as_ref().unwrap();
    Journaled::run(volume.state(), "a test", 3, |blocks| {
        blocks.change(ONE, |bytes| bytes[0] = 7)?;
        blocks.freed(ONE)?;
        blocks.freed(OTHER)
    })
    .unwrap();
    assert_eq!(journal.revoked(), [ONE.get(), OTHER.get()]);
    Journaled::run(volume.state(), "a test", 1, |blocks| blocks.fresh(ONE, |bytes| bytes[0] = 1)).unwrap();
    assert_eq!(journal.revoked(), [OTHER.get()], "it is metadata again");
}

#[test]
fn without_a_credit_nothing_is_changed() {
    needs!(Need::Tool("mke2fs"));
    let volume = journaled();
    let state = volume.state();
    let refused = Journaled::run(state, "a test", 0, |blocks| blocks.change(ONE, |bytes| bytes[0] = 7));
    assert_says(refused, "no credit left to change block 3000");
    assert_eq!(first_byte(state, ONE), 0);
    let refused = Journaled::run(state, "a test", 0, |blocks| blocks.freed(ONE));
    assert_says(refused, "no credit left to change block 3000");
    let journal = state.journal.as_ref().unwrap();
    assert!(journal.revoked().is_empty() && journal.aborted().is_none(), "nothing was half done");
    let most = journal.max_handle_credits();
    assert_says(Journaled::run(state, "a test", most + 1, |_| Ok(())), "credits were asked for");
}

#[test]
fn an_edit_that_fails_half_way_aborts_the_journal() {
    needs!(Need::Tool("mke2fs"));
    let firsts: [fn(&mut Journaled<'_>) -> Result<()>; 3] = [
        |blocks| blocks.change(ONE, |bytes| bytes[0] = 7),
        |blocks| blocks.fresh(ONE, |bytes| bytes[0] = 7),
        |blocks| blocks.freed(ONE),
    ];
    for first in firsts {
        let volume = journaled();
        let state = volume.state();
        let failed = Journaled::run(state, "a test", 1, |blocks| {
            first(blocks)?;
            blocks.change(OTHER, |bytes| bytes[0] = 7)
        });
        assert_says(failed, "no credit left to change block 3001");
        let cause = state.journal.as_ref().unwrap().aborted().unwrap();
        assert!(cause.what.contains("halfway: "), "{cause}");
        let refused = Journaled::run(state, "a test", 1, |blocks| blocks.change(ONE, |_| ()));
        assert!(matches!(refused, Err(Error::Aborted(_))), "{refused:?}");
    }
}

/// Whether the panic comes after the change or inside it.
#[test]
fn an_edit_that_panics_half_way_aborts_the_journal() {
    needs!(Need::Tool("mke2fs"));
    for inside in [false, true] {
        let volume = journaled();
        let state = volume.state();
        let panics = |first: bool| {
            let edit = |blocks: &mut Journaled<'_>| -> Result<()> {
                assert!(!first, "planned");
                blocks.change(ONE, |bytes| {
                    bytes[0] = 7;
                    assert!(!inside, "planned");
                })?;
                panic!("planned")
            };
            let run = std::panic::AssertUnwindSafe(|| Journaled::run(state, "a test", 1, edit));
            assert!(std::panic::catch_unwind(run).is_err());
        };
        panics(true);
        let journal = state.journal.as_ref().unwrap();
        assert!(journal.aborted().is_none(), "nothing was half done");
        panics(false);
        let cause = journal.aborted().unwrap();
        assert!(cause.what.contains("halfway"), "{cause}");
        let refused = Journaled::run(state, "a test", 1, |blocks| blocks.change(ONE, |_| ()));
        assert!(matches!(refused, Err(Error::Aborted(_))), "{refused:?}");
    }
}

#[test]
fn what_is_looked_at_but_fails_aborts_nothing() {
    needs!(Need::Tool("mke2fs"));
    let volume = journaled();
    let state = volume.state();
    let beyond = Pblk(state.superblock.geometry.blocks_count());
    let failed = Journaled::run(state, "a test", 1, |blocks| blocks.look(beyond, |_| ()));
    assert_says(failed, "outside the volume");
    assert!(state.journal.as_ref().unwrap().aborted().is_none());
}

fn unlogged() -> Volume {
    open(&image(16, &["-b", "1024", "-N", "64", "-O", "^has_journal"]))
}

#[test]
fn steps_without_a_journal_go_home_together() {
    needs!(Need::Tool("mke2fs"));
    let volume = unlogged();
    let state = volume.state();
    let home = |block: Pblk| {
        let mut home = crate::BufferPool::new(1024).unwrap().take(1024).unwrap();
        volume.device().read_at(&mut home, block.get() * 1024).unwrap();
        home[0]
    };
    let tid = Journaled::run(state, "a test", 1, |blocks| {
        edit(blocks)?;
        Ok(blocks.tid())
    });
    let tid = tid.unwrap();
    assert_eq!((first_byte(state, ONE), first_byte(state, OTHER)), (7, 9));
    assert_eq!((home(ONE), home(OTHER), state.newest_uncommitted()), (0, 0, Some(tid)));
    // A freed block is not written home.
    Journaled::run(state, "a test", 1, |blocks| blocks.freed(ONE)).unwrap();
    assert!(state.datasync(tid).unwrap(), "flushed");
    assert_eq!((home(ONE), home(OTHER), state.newest_uncommitted()), (0, 9, None));
    assert!(!state.datasync(tid).unwrap(), "nothing is left");
    let next = Journaled::run(state, "a test", 1, |blocks| Ok(blocks.tid())).unwrap();
    assert!(next > tid);
    let stats = state.journal_stats();
    assert_eq!((stats.handles_started, stats.commits, stats.home_writes), (3, 1, 1));
}

#[test]
fn a_step_that_fails_half_way_ends_all_changes() {
    needs!(Need::Tool("mke2fs"));
    let volume = unlogged();
    let state = volume.state();
    let refused = Journaled::run(state, "a test", 1, |_| Err::<(), _>(Error::NoSpace));
    assert!(matches!(refused, Err(Error::NoSpace)));
    Journaled::run(state, "a test", 1, |blocks| blocks.change(ONE, |bytes| bytes[0] = 7)).unwrap();
    let failed = Journaled::run(state, "a test", 1, |blocks| {
        blocks.change(OTHER, |bytes| bytes[0] = 1)?;
        Err::<(), _>(Error::NoSpace)
    });
    assert!(matches!(failed, Err(Error::NoSpace)));
    let refused =
        [state.commit_all(), Journaled::run(state, "a test", 1, |_| Ok(())), volume.clone().close()];
    for refused in refused {
        assert!(matches!(&refused, Err(Error::Aborted(cause)) if cause.contains("halfway")), "{refused:?}");
    }
    let mut home = crate::BufferPool::new(1024).unwrap().take(1024).unwrap();
    volume.device().read_at(&mut home, ONE.get() * 1024).unwrap();
    assert_eq!(home[0], 0, "nothing of the batch is home");
}

#[test]
fn changes_past_all_steps_are_due_at_once_and_a_freed_block_is_forgotten() {
    needs!(Need::Tool("mke2fs"));
    let volume = unlogged();
    let state = volume.state();
    edit(&mut Direct(state)).unwrap();
    assert_eq!((first_byte(state, ONE), first_byte(state, OTHER)), (7, 9));
    assert_eq!(state.cache.state(ONE.get()), Some(BufferState::Dirty));
    Direct(state).freed(ONE).unwrap();
    assert_eq!(state.cache.sync().unwrap(), 1, "the freed block is not written");
    assert_eq!((first_byte(state, ONE), first_byte(state, OTHER)), (0, 9));
}

#[test]
fn a_canvas_keeps_what_was_changed_to_itself() {
    needs!(Need::Tool("mke2fs"));
    let volume = journaled();
    let state = volume.state();
    let mut canvas = Canvas::new(state, 3 * 1024, Work::new(state));
    edit(&mut canvas).unwrap();
    assert_eq!((first_byte(state, ONE), first_byte(state, OTHER)), (0, 0));
    let third = Pblk(3002);
    Blocks::change(&mut canvas, third, |bytes| bytes[0] = 1).unwrap();
    assert_says(Blocks::change(&mut canvas, Pblk(3003), |_| ()), "change more than 3 KiB of metadata");
    // A freed block is not written home, and its memory is available again.
    canvas.freed(ONE).unwrap();
    canvas.fresh(Pblk(3003), |_| ()).unwrap();
    canvas.fresh(third, |bytes| assert!(bytes.iter().all(|byte| *byte == 0))).unwrap();
    let changed: Vec<u64> = canvas.into_changes().into_keys().collect();
    assert_eq!(changed, [3001, 3002, 3003]);
}
