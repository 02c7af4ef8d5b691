//! Writes in parts, retrying each part until it is written.

use crate::retries::{Retries, is_put_off};
use crate::{Error, Op, Result};
use std::io;

/// Longest single system call, bytes: the kernel transfers at most `MAX_RW_COUNT` (2 GiB - 4 KiB) at once.
pub(super) const CALL_MAX: usize = 1 << 30;

/// One attempt to write.
pub(super) enum Attempt {
    /// The write was sent; bytes written.
    Made(io::Result<usize>),
    /// Nothing was sent.
    NoRing(io::Error),
}

/// Writes until all bytes are written, retrying deferred parts for a time. The outer error is that of an attempt
/// without a ring before anything was written.
pub(super) fn write_in_parts(
    buf: &[u8],
    pos: u64,
    mut attempt: impl FnMut(&[u8], u64) -> Attempt,
) -> io::Result<Result<()>> {
    let (mut done, mut retries) = (0, Retries::default());
    let failed = |errno| Ok(Err(io_error(Op::Write, pos, buf.len() as u64, errno)));
    while done < buf.len() {
        let part = &buf[done..buf.len().min(done + CALL_MAX)];
        let error = match attempt(part, pos + done as u64) {
            Attempt::NoRing(error) if done == 0 => return Err(error),
            Attempt::Made(Ok(count)) if count > 0 => {
                done += count;
                continue;
            }
            Attempt::Made(Ok(_)) => return failed(libc::EIO),
            Attempt::Made(Err(error)) | Attempt::NoRing(error) => error,
        };
        let errno = errno_of(&error);
        if !is_put_off(errno) {
            return failed(errno);
        }
        if !retries.count() {
            let (op, length, trials) = (Op::Write.name(), buf.len() as u64, retries.trials());
            return Ok(Err(Error::GaveUp { op, pos, length, errno, trials }));
        }
    }
    Ok(Ok(()))
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
        let gave_up = write_in_parts(&[0; 512], 0, again).unwrap().unwrap_err();
        assert!(matches!(gave_up, Error::GaveUp { errno: libc::EAGAIN, trials, .. } if trials > 1));
        let nothing = write_in_parts(&[0; 512], 0, |_, _| Attempt::Made(Ok(0))).unwrap().unwrap_err();
        assert_eq!(nothing.errno(), libc::EIO);
        let mut first = true;
        let torn = write_in_parts(&[0; 512], 0, |_, _| {
            if std::mem::take(&mut first) {
                return Attempt::Made(Ok(256));
            }
            Attempt::NoRing(io::Error::from_raw_os_error(libc::EMFILE))
        });
        assert_eq!(torn.unwrap().unwrap_err().errno(), libc::EMFILE, "a plain call would start over");
    }
}
