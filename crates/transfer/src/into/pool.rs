//! Threads that fill new files while the walk goes on: a device answers several requests at a time.
//!
//! A file that is too large for the volume takes blocks until its copy fails; then it gives them back. A file that
//! finds no room in between is filled once more when no other file is being filled.

use super::ImportOptions;
use super::made;
use super::origin::{Item, Origin};
use crate::error::{Error, Result};
use crate::import::{answer, memory};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::Scope;
use std::time::Duration;
use uext4::{Node, OpenOptions};

/// Threads.
const WORKERS: usize = 4;
/// How long a full queue is left alone while no thread tells anything.
const PAUSE: Duration = Duration::from_millis(2);
/// New files that wait to be filled. Each may hold a descriptor.
const WAITING: usize = 32;

/// A new file to fill. It has its name already.
pub struct Job<T> {
    pub thing: T,
    pub item: Item,
    pub node: Node,
    pub parent: Node,
    pub name: Vec<u8>,
    /// Its path below the source, and that of the copy below the destination.
    pub paths: (Vec<u8>, Vec<u8>),
}

/// What a thread tells.
pub enum Told {
    Advanced(u64),
    Trouble(Error),
}

/// The threads of one copy. They end when it is dropped.
pub struct Pool<T> {
    jobs: SyncSender<Job<T>>,
    told: Receiver<Told>,
    room: Arc<RwLock<()>>,
}

/// What all threads share.
pub struct Queue<T> {
    /// The receiving end of the jobs.
    jobs: Mutex<Option<Receiver<Job<T>>>>,
    /// Held by who fills a file: alone, by who fills it once more.
    room: Arc<RwLock<()>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { jobs: Mutex::new(None), room: Arc::default() }
    }
}

impl<T: Send> Pool<T> {
    /// Starts the threads.
    ///
    /// # Errors
    /// If there is no memory for one of them.
    pub fn start<'s, 'e, O>(
        scope: &'s Scope<'s, 'e>,
        queue: &'e Queue<T>,
        origin: &'e O,
        options: &'e ImportOptions,
    ) -> Result<Pool<T>>
    where
        O: Origin<Thing = T>,
        T: 'e,
    {
        let (jobs, waiting) = sync_channel(WAITING);
        *queue.jobs.lock().unwrap_or_else(PoisonError::into_inner) = Some(waiting);
        let (tell, told) = channel();
        for _ in 0..WORKERS {
            // Here, so that no thread ends before the jobs do: nobody would take them.
            let (mut buffer, tell) = (memory()?, tell.clone());
            scope.spawn(move || work(queue, origin, options, &mut buffer, &tell));
        }
        Ok(Pool { jobs, told, room: Arc::clone(&queue.room) })
    }

    /// Hands a new file over. If many wait, it waits too, and calls `hear` with what the threads tell. Gives it back if
    /// the threads are gone.
    pub fn fill(&self, mut job: Job<T>, hear: &mut dyn FnMut(Told)) -> std::result::Result<(), Box<Job<T>>> {
        loop {
            match self.jobs.try_send(job) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(refused)) => return Err(Box::new(refused)),
                Err(TrySendError::Full(refused)) => job = refused,
            }
            // A thread tells of each part of a file before it takes the next job.
            if let Ok(told) = self.told.recv_timeout(PAUSE) {
                hear(told);
            }
        }
    }

    /// Waits until the files are filled, or have failed, that are being filled now.
    pub fn let_finish(&self) {
        drop(self.room.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// What was told since the last call.
    pub fn told(&self) -> impl Iterator<Item = Told> {
        self.told.try_iter()
    }

    /// Waits for all threads, and calls `hear` with what they tell.
    pub fn finish(self, mut hear: impl FnMut(Told)) {
        drop(self.jobs);
        self.told.iter().for_each(&mut hear);
    }
}

fn work<O: Origin>(
    queue: &Queue<O::Thing>,
    origin: &O,
    options: &ImportOptions,
    buffer: &mut [u8],
    tell: &Sender<Told>,
) {
    // Nobody hears when the copy has ended early.
    let say = |told| drop(tell.send(told));
    loop {
        let jobs = queue.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Ok(job)) = jobs.as_ref().map(Receiver::recv) else { return };
        drop(jobs);
        let advance = &mut |bytes| say(Told::Advanced(bytes));
        let filled = fill_or_wait(&queue.room, origin, &job, buffer, advance);
        match filled {
            Ok(()) => {
                made::keep(origin, options, &job.thing, &job.item, &job.node, &job.paths, &mut |error| {
                    say(Told::Trouble(error));
                })
            }
            Err(error) => say(Told::Trouble(error)),
        }
    }
}

/// Fills a new file while others are being filled. If there is no room, it is filled once more when they are done.
/// `advance` hears of each byte once.
fn fill_or_wait<O: Origin>(
    room: &RwLock<()>,
    origin: &O,
    job: &Job<O::Thing>,
    buffer: &mut [u8],
    advance: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut told = 0;
    let beside = room.read().unwrap_or_else(PoisonError::into_inner);
    let filled = pour(origin, job, buffer, &mut |bytes| {
        told += bytes;
        advance(bytes);
    });
    match filled {
        Err(error) if error.is_no_space() => {}
        other => return other.map_err(|error| undo(job, error)),
    }
    give_back(job);
    drop(beside);
    let _alone = room.write().unwrap_or_else(PoisonError::into_inner);
    let mut now = 0;
    fill(origin, job, buffer, &mut |bytes| {
        now += bytes;
        if now > told {
            advance(now - told);
            told = now;
        }
    })
}

/// Fills a new file. One that cannot be filled is removed again: a part of a file is worth less than none.
pub fn fill<O: Origin>(
    origin: &O,
    job: &Job<O::Thing>,
    buffer: &mut [u8],
    advance: &mut dyn FnMut(u64),
) -> Result<()> {
    pour(origin, job, buffer, advance).map_err(|error| undo(job, error))
}

fn pour<O: Origin>(
    origin: &O,
    job: &Job<O::Thing>,
    buffer: &mut [u8],
    advance: &mut dyn FnMut(u64),
) -> Result<()> {
    let file = job.node.open(OpenOptions::new().write(true).direct(true)).map_err(answer)?;
    origin.fill(&job.thing, &job.paths.0, &file, buffer, advance)
}

/// Others may need these blocks.
fn give_back<T>(job: &Job<T>) {
    let opened = job.node.open(OpenOptions::new().write(true).direct(true));
    // If that fails, there is no more room for others, and that is all.
    let _as_it_is = opened.and_then(|file| file.set_len(0));
}

/// Removes what could not be filled.
fn undo<T>(job: &Job<T>, error: Error) -> Error {
    // Its blocks first: while the job holds the file, it keeps them without a name.
    give_back(job);
    // The first failure is reported.
    let _of_less_interest = job.parent.unlink(&job.name);
    error.below(&job.paths.1)
}
