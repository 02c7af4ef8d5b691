//! Executes the commands of `io`.

use super::json::{Row, Said};
use super::language::{Command, LANGUAGE, Read, Span, Write, describes};
use super::vectors::Vectors;
use crate::error::CliError;
use crate::map::JsonPiece;
use crate::open::Operand;
use crate::out::Out;
use crate::stat::JsonStat;
use crate::text;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};
use uext4::{Buffer, BufferPool, File, Piece, State, Stats, Volume, WriteFlags};

/// Bytes per line of a dump.
const DUMP_LINE: usize = 16;

/// An open file with its buffers and output.
pub struct Session<'a> {
    operand: &'a Operand,
    volume: &'a Volume,
    file: File,
    writable: bool,
    logical_block: u64,
    out: Out,
    json: bool,
    /// Counters at the start: at the end, the difference is printed.
    pub tells_stats: bool,
    /// Refuse bounce buffers.
    pub only_direct: bool,
    /// Whether requests go over pages.
    pub buffered: bool,
    before: Stats,
}

/// The result of a series of calls.
struct Done {
    bytes: u64,
    calls: u64,
    time: Duration,
}

impl<'a> Session<'a> {
    /// A session on an open file.
    pub fn new(operand: &'a Operand, volume: &'a Volume, file: File, writable: bool, json: bool) -> Self {
        Session {
            operand,
            volume,
            file,
            writable,
            logical_block: u64::from(volume.device().geometry().logical_block),
            out: Out::new(),
            json,
            tells_stats: false,
            only_direct: false,
            buffered: false,
            before: volume.stats(),
        }
    }

    /// The argument, for messages.
    pub fn argument(&self) -> Vec<u8> {
        self.operand.argument.as_bytes().to_vec()
    }

    /// Prints a prompt, unless the output is for a program.
    pub fn show_prompt(&mut self) -> Result<(), CliError> {
        if self.json {
            return Ok(());
        }
        self.out.bytes(b"uext4 io> ")?;
        self.out.flush()
    }

    /// Reports a failed command, in order with the printed output.
    pub fn report(&mut self, error: &CliError) -> Result<(), CliError> {
        self.out.flush()?;
        error.report(Some("io"), self.json);
        Ok(())
    }

    /// Flushes the rest of the output.
    pub fn finish(mut self) -> Result<(), CliError> {
        if self.tells_stats {
            self.stats()?;
        }
        self.out.finish()
    }

    fn stats(&mut self) -> Result<(), CliError> {
        let stats = self.volume.stats().since(&self.before);
        if self.json {
            return self.say(&Said::Stats { counters: stats.iter().collect() });
        }
        for (name, count) in stats.iter() {
            writeln!(self.out, "stats.{name} = {count}")?;
        }
        Ok(())
    }

    /// Runs one command.
    pub fn run(&mut self, command: &Command) -> Result<(), CliError> {
        match command {
            Command::Read(read) => self.read(read),
            Command::Write(write) => self.write(write),
            Command::Sync { all: true } => self.file.sync_all().map_err(|error| self.operand.error(error)),
            Command::Sync { all: false } => self.file.sync_data().map_err(|error| self.operand.error(error)),
            Command::Map { verbose, offset, length } => self.map(*verbose, *offset, *length),
            Command::Stat => self.stat(),
            Command::Help(name) => self.help(name.as_deref()),
            Command::Fallocate { mode, offset, length } => {
                self.check_writable("fallocate")?;
                self.file.fallocate(*mode, *offset, *length).map_err(|error| self.operand.error(error))
            }
            Command::Truncate { size } => {
                self.check_writable("truncate")?;
                self.file.set_len(*size).map_err(|error| self.operand.error(error))
            }
            Command::Quit => Ok(()),
        }?;
        // Show a command's output before the next one starts.
        self.out.flush()
    }

    /// The buffer of a call; minimal if vectors have their own.
    fn buffer(&self, span: &Span, vectored: bool) -> Result<Buffer, CliError> {
        let bytes = if vectored { 1 } else { span.call.min(span.length).max(1) };
        let length = bytes.next_multiple_of(4096) as usize;
        let pool = BufferPool::new(length).and_then(|pool| pool.take(length));
        pool.map_err(|error| self.operand.error(error))
    }

    /// The queue for calls with several vectors, if `span` asks for them and they can go to the device directly.
    fn vectors(&self, span: &Span) -> Result<Option<Vectors>, CliError> {
        if span.vectors() < 2 || !self.aligned(span.offset | span.vector, span.length) {
            return Ok(None);
        }
        Vectors::new(self.volume, &self.file, span).map(Some).map_err(|error| self.operand.error(error))
    }

    /// Whether a call can go to the device without a bounce buffer.
    fn aligned(&self, pos: u64, length: u64) -> bool {
        (pos | length) & (self.logical_block - 1) == 0
    }

    /// Whether a call must be direct, which the library refuses if it is not aligned.
    fn direct(&self, pos: u64, length: u64) -> bool {
        !self.buffered && (self.only_direct || self.aligned(pos, length))
    }

    fn read(&mut self, read: &Read) -> Result<(), CliError> {
        let span = &read.span;
        let mut vectors = self.vectors(span)?;
        let mut buffer = self.buffer(span, vectors.is_some())?;
        let mut done = Done { bytes: 0, calls: 0, time: Duration::ZERO };
        while done.bytes < span.length {
            let pos = span.offset + done.bytes;
            let want = (span.length - done.bytes).min(span.call);
            let start = Instant::now();
            let got = if let Some(vectors) = &mut vectors {
                vectors.read(pos, want, span.vector)
            } else if self.direct(pos, want) {
                self.file.read_at(&mut buffer[..want as usize], pos)
            } else {
                self.file.read_any_at(&mut buffer[..want as usize], pos)
            };
            done.time += start.elapsed();
            let got =
                got.map_err(|error| self.operand.error(error).after("read", done.bytes, span.length))?;
            if got == 0 {
                break;
            }
            match &vectors {
                _ if !read.dump => {}
                Some(vectors) => self.dump(pos, &vectors.bytes()[..got])?,
                None => self.dump(pos, &buffer[..got])?,
            }
            done.bytes += got as u64;
            done.calls += 1;
            if (got as u64) < want {
                break;
            }
        }
        self.summary("read", span, &done)
    }

    fn write(&mut self, write: &Write) -> Result<(), CliError> {
        self.check_writable("pwrite")?;
        let span = &write.span;
        let mut vectors = self.vectors(span)?;
        let mut buffer = self.buffer(span, vectors.is_some())?;
        buffer.fill(write.seed);
        let mut flags = WriteFlags::empty();
        flags.set(WriteFlags::DSYNC, write.dsync);
        flags.set(WriteFlags::NOWAIT, write.nowait);
        flags.set(WriteFlags::ATOMIC, write.atomic);
        let mut done = Done { bytes: 0, calls: 0, time: Duration::ZERO };
        let start = Instant::now();
        while done.bytes < span.length {
            let pos = span.offset + done.bytes;
            let want = (span.length - done.bytes).min(span.call);
            let put = if let Some(vectors) = &mut vectors {
                vectors.write(pos, want, span.vector, write.seed, flags)
            } else if self.direct(pos, want) {
                self.file.write_at_with(&buffer[..want as usize], pos, flags)
            } else {
                self.file.write_any_at(&buffer[..want as usize], pos, flags)
            };
            let failed = |error| self.operand.error(error).after("written", done.bytes, span.length);
            let put = put.map_err(failed)? as u64;
            done.bytes += put;
            done.calls += 1;
            if write.once || put < want {
                break;
            }
        }
        let sync = match (write.sync_all, write.sync_data) {
            (true, _) => self.file.sync_all(),
            (false, true) => self.file.sync_data(),
            (false, false) => Ok(()),
        };
        sync.map_err(|error| self.operand.error(error).after("written", done.bytes, span.length))?;
        done.time = start.elapsed();
        self.summary("wrote", span, &done)
    }

    fn check_writable(&self, name: &str) -> Result<(), CliError> {
        if self.writable {
            return Ok(());
        }
        let message = format!("{name}: the file is open read-only");
        Err(CliError::failed(&self.operand.argument, message, libc::EBADF))
    }

    /// Writes one object as JSON, on a line.
    fn say(&mut self, said: &Said<'_>) -> Result<(), CliError> {
        self.out.json_compact(said)?;
        self.out.bytes(b"\n")
    }

    fn summary(&mut self, verb: &str, span: &Span, done: &Done) -> Result<(), CliError> {
        if span.quiet {
            return Ok(());
        }
        if self.json {
            let (bytes, calls, seconds) = (done.bytes, done.calls, done.time.as_secs_f64());
            let row = Row::Done { offset: span.offset, length: span.length, bytes, calls, seconds };
            return self.say(&if verb == "read" { Said::Pread(row) } else { Said::Pwrite(row) });
        }
        let seconds = done.time.as_secs_f64().max(1e-9);
        let (rate, calls) = (done.bytes as f64 / seconds, done.calls as f64 / seconds);
        if span.condensed {
            return writeln!(
                self.out,
                "{},{},{},{rate:.3},{calls:.3}",
                done.bytes,
                done.calls,
                clock(done.time)
            );
        }
        writeln!(self.out, "{verb} {}/{} bytes at offset {}", done.bytes, span.length, span.offset)?;
        writeln!(
            self.out,
            "{}, {} ops; {} ({}/sec and {calls:.4} ops/sec)",
            text::human(done.bytes as f64),
            done.calls,
            clock(done.time),
            text::human(rate.round())
        )
    }

    fn dump(&mut self, pos: u64, bytes: &[u8]) -> Result<(), CliError> {
        if self.json {
            let data_b64 = &text::base64(bytes);
            return self.say(&Said::Pread(Row::Dump { offset: pos, data_b64 }));
        }
        for (line, part) in bytes.chunks(DUMP_LINE).enumerate() {
            write!(self.out, "{:08x}:  ", pos + (line * DUMP_LINE) as u64)?;
            for byte in part {
                write!(self.out, "{byte:02x} ")?;
            }
            let letter = |byte: &u8| if byte.is_ascii_alphanumeric() { char::from(*byte) } else { '.' };
            let letters: String = part.iter().map(letter).collect();
            writeln!(self.out, " {letters}")?;
        }
        Ok(())
    }

    fn map(&mut self, verbose: bool, offset: u64, length: u64) -> Result<(), CliError> {
        let end = offset.saturating_add(length);
        let pieces = crate::map::extents(self.operand, &self.file, true)?;
        let pieces: Vec<&Piece> =
            pieces.iter().filter(|piece| piece.end() > offset && piece.logical < end).collect();
        if self.json {
            let extents = pieces.into_iter().map(JsonPiece::from).collect();
            return self.say(&Said::Fiemap { extents });
        }
        self.out.name(&self.operand.path)?;
        self.out.bytes(b":\n")?;
        if verbose {
            writeln!(self.out, " EXT: FILE-OFFSET          BLOCK-RANGE                TOTAL FLAGS")?;
        }
        for (index, piece) in pieces.iter().enumerate() {
            let last = piece.end() >= self.file.size();
            let (first, count) = (piece.logical / 512, piece.length.div_ceil(512));
            let logical = format!("[{first}..{}]:", first + count - 1);
            let physical = match piece.state {
                State::Hole => "hole".to_owned(),
                _ => format!("{}..{}", piece.physical / 512, piece.physical / 512 + count - 1),
            };
            if verbose {
                let flags = fiemap_flags(piece, last);
                writeln!(self.out, "{index:>4}: {logical:<20} {physical:<24} {count:>7} {flags:>5}")?;
            } else {
                writeln!(self.out, "\t{index}: {logical} {physical}")?;
            }
        }
        Ok(())
    }

    fn stat(&mut self) -> Result<(), CliError> {
        let metadata = self.file.metadata();
        if self.json {
            return self.say(&Said::Stat(JsonStat::new(&metadata, None)));
        }
        self.out.bytes(b"fd.path = \"")?;
        self.out.name(&self.operand.path)?;
        let mode = if self.writable { "read-write" } else { "read-only" };
        writeln!(self.out, "\"\nfd.flags = non-sync,direct,{mode}")?;
        writeln!(self.out, "stat.ino = {}", metadata.ino)?;
        writeln!(self.out, "stat.type = {}", text::kind_words(metadata.kind))?;
        writeln!(self.out, "stat.size = {}", metadata.size)?;
        writeln!(self.out, "stat.blocks = {}", metadata.blocks)?;
        writeln!(self.out, "stat.blksize = {}", self.volume.block_size())?;
        writeln!(self.out, "dioattr.miniosz = {}", self.logical_block)
    }

    fn help(&mut self, name: Option<&str>) -> Result<(), CliError> {
        let text = name.map_or_else(|| format!("{LANGUAGE}\n"), about);
        if self.json {
            return self.say(&Said::Help { text: &text });
        }
        self.out.bytes(text.as_bytes())
    }
}

/// The help lines of one command.
fn about(name: &str) -> String {
    let mut lines = LANGUAGE.lines().skip_while(|line| !describes(line, name));
    let first = lines.next().map(str::trim_start);
    let rest = lines.take_while(|line| line.starts_with("    "));
    first.into_iter().chain(rest).flat_map(|line| [line, "\n"]).collect()
}

/// Flags of `fiemap(2)`: 0x1 the last extent, 0x800 unwritten, 0x300 inside the inode and not aligned.
fn fiemap_flags(piece: &Piece, last: bool) -> String {
    match piece.state {
        State::Hole => String::new(),
        State::Written => format!("{:#x}", u32::from(last)),
        State::Unwritten => format!("{:#x}", 0x800 | u32::from(last)),
        State::Inline => format!("{:#x}", 0x300 | u32::from(last)),
    }
}

/// `0:00:01.23`.
fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let hundredths = time.subsec_millis() / 10;
    format!("{}:{:02}:{:02}.{hundredths:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks() {
        assert_eq!(clock(Duration::from_millis(1239)), "0:00:01.23");
        assert_eq!(clock(Duration::from_secs(3_723)), "1:02:03.00");
    }
}
