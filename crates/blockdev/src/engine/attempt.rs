//! Writes of which each part is attempted until it is written.

use crate::{Error, Op, Result};
use std::io;
use std::time::{Duration, Instant};

/// Longest single system call, bytes: the kernel transfers at most `MAX_RW_COUNT` (2 GiB - 4 KiB) at once.
pub(super) const CALL_MAX: usize = 1 << 30;

/// A write through a ring that is put off is sent again at least so often ...
const TRIALS: u32 = 8;
/// ... and at least so long.
const PATIENCE: Duration = Duration::from_millis(100);

/// One attempt to write.
pub(super) enum Attempt {
    /// How many bytes.
    Made(io::Result<usize>),
    /// Nothing was sent.
    NoRing(io::Error),
}

/// Writes until all is written. What is put off is tried again, for a time. The outer error is that of an attempt
/// without a ring before anything was written.
pub(super) fn write_in_parts(
    buf: &[u8],
    pos: u64,
    mut attempt: impl FnMut(&[u8], u64) -> Attempt,
) -> io::Result<Result<()>> {
    let (mut done, mut trials, mut put_off) = (0, 0, None);
    let failed = |errno| Ok(Err(io_error(Op::Write, pos, buf.len() as u64, errno)));
    while done < buf.len() {
        let part = &buf[done..buf.len().min(done + CALL_MAX)];
        trials += 1;
        let error = match attempt(part, pos + done as u64) {
            Attempt::NoRing(error) if done == 0 => return Err(error),
            Attempt::Made(Ok(count)) if count > 0 => {
                done += count;
                continue;
            }
            Attempt::Made(Ok(_)) => return failed(libc::EIO),
            Attempt::Made(Err(error)) | Attempt::NoRing(error) => error,
        };
        if !is_put_off(&error) {
            return failed(errno_of(&error));
        }
        let waited = put_off.get_or_insert_with(Instant::now).elapsed();
        if trials > TRIALS && waited >= PATIENCE {
            let (op, length, errno) = (Op::Write.name(), buf.len() as u64, errno_of(&error));
            return Ok(Err(Error::GaveUp { op, pos, length, errno, trials }));
        }
    }
    Ok(Ok(()))
}

/// Whether a request was not carried out, but may be if it is sent again.
fn is_put_off(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ECANCELED))
}

pub(super) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

pub(super) fn io_error(op: Op, pos: u64, length: u64, errno: i32) -> Error {
    Error::Io { op: op.name(), pos, length, errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_in_parts_is_whole_and_in_its_place() {
        let buf: Vec<u8> = (0..100).collect();
        let (mut medium, mut calls) = (vec![0; 300], 0);
        let written = write_in_parts(&buf, 50, |part, at| {
            calls += 1;
            if calls % 3 == 0 {
                return Attempt::Made(Err(io::Error::from_raw_os_error(libc::EAGAIN)));
            }
            let (count, at) = (part.len().min(7), at as usize);
            medium[at..at + count].copy_from_slice(&part[..count]);
            Attempt::Made(Ok(count))
        });
        assert!(matches!(written, Ok(Ok(()))));
        assert_eq!(medium[50..150], buf);
        assert!(medium[..50].iter().chain(&medium[150..]).all(|&byte| byte == 0));
    }

    #[test]
    fn a_write_that_is_put_off_for_ever_ends_with_the_reason() {
        let again = |_: &[u8], _| Attempt::Made(Err(io::Error::from_raw_os_error(libc::EAGAIN)));
        let started = Instant::now();
        let gave_up = write_in_parts(&[0; 512], 0, again).unwrap().unwrap_err();
        assert!(matches!(gave_up, Error::GaveUp { errno: libc::EAGAIN, trials, .. } if trials > TRIALS));
        assert!(started.elapsed() >= PATIENCE);
        let nothing = write_in_parts(&[0; 512], 0, |_, _| Attempt::Made(Ok(0))).unwrap().unwrap_err();
        assert_eq!(nothing.errno(), libc::EIO);
        let mut first = true;
        let torn = write_in_parts(&[0; 512], 0, |_, _| {
            if std::mem::take(&mut first) {
                return Attempt::Made(Ok(256));
            }
            Attempt::NoRing(io::Error::from_raw_os_error(libc::EMFILE))
        });
        assert_eq!(torn.unwrap().unwrap_err().errno(), libc::EMFILE, "a plain call would begin anew");
    }
}
