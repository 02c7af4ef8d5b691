//! `uext4 explain`: prints the library's decision for a request.

use crate::args::{CommonArgs, Globals, SwitchArgs, Watchers};
use crate::error::CliError;
use crate::open::{OpenHow, Operand};
use crate::out::{self, Out};
use crate::rehearsal::Rehearsal;
use crate::text;
use clap::{ArgGroup, Args, ValueHint};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use uext4::explain::{DeviceRequest, Explanation, Query};
use uext4::plan::{Durability, Finish, GateMode, JournalWork, Plan, Route, Sync};

/// Memory of a rehearsal for each device, bytes, unless given.
const MEMORY: u64 = 256 << 20;

/// `uext4 explain`.
#[derive(Args)]
#[command(
    override_usage = "uext4 explain [OPTIONS] DEVICE:/path --read|--write OFFSET LENGTH\n       uext4 explain \
                      [--json] [--memory SIZE] -- COMMAND...",
    after_help = "\
With a COMMAND that changes names or files (mkdir, mv, rm, ln, cp into a volume, chmod, chown, touch, chattr, xattr,
quota, rmdir, truncate, fallocate, prepare), the command is rehearsed: it runs with all its writes kept in memory, and
nothing is written to the device. Printed is what each operation does to the metadata: the handles it starts in the
journal, the credits each asks for and uses, and the blocks each changes, by what they hold; then, for each volume,
commits, blocks of the log, blocks written home, and flushes. The command's own output is not printed. Its errors are,
and its exit status is that of the rehearsal."
)]
#[command(group(ArgGroup::new("direction").args(["read", "write", "words"])))]
pub struct ExplainArgs {
    /// The file.
    #[arg(value_name = "DEVICE:/path", value_hint = ValueHint::FilePath, required_unless_present = "words")]
    pub operand: Option<OsString>,
    /// Explain a read.
    #[arg(long, required_unless_present_any = ["write", "words"])]
    pub read: bool,
    /// Explain a write.
    #[arg(long)]
    pub write: bool,
    /// First byte.
    #[arg(value_parser = text::parse_size, required_unless_present = "words")]
    pub offset: Option<u64>,
    /// Length in bytes.
    #[arg(value_parser = text::parse_size, required_unless_present = "words")]
    pub length: Option<u64>,
    /// A uext4 command and its arguments, without `uext4`, to be rehearsed.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["operand", "offset", "length"])]
    pub words: Vec<OsString>,
    /// Most memory for what a rehearsed command writes to each device, data included; 256 MiB unless given.
    #[arg(long, value_name = "SIZE", value_parser = text::parse_size)]
    pub memory: Option<u64>,
    /// The write is durable when it completes, as with O_DSYNC.
    #[arg(long, conflicts_with = "read")]
    pub dsync: bool,
    /// The write and all metadata are durable, as with O_SYNC.
    #[arg(long, conflicts_with_all = ["read", "dsync"])]
    pub sync: bool,
    /// Use a queue instead of a synchronous call.
    #[arg(long = "async")]
    pub queued: bool,
    /// How to open, and the output format.
    #[command(flatten)]
    pub common: CommonArgs,
    /// The optimisations that the decision may use.
    #[command(flatten)]
    pub switches: SwitchArgs,
}

/// Commands that change volumes and nothing else.
const COMMANDS: [&str; 15] = [
    "chattr",
    "chmod",
    "chown",
    "cp",
    "fallocate",
    "ln",
    "mkdir",
    "mv",
    "prepare",
    "quota",
    "rm",
    "rmdir",
    "touch",
    "truncate",
    "xattr",
];

#[derive(Serialize)]
struct JsonExplanation<'a> {
    route: &'static str,
    gate: &'static str,
    drain: bool,
    counted: bool,
    journal: &'static str,
    zero_edges: JsonEdges,
    zeroed: u64,
    durability: &'static str,
    completion: &'static str,
    refused: Option<&'a str>,
    reasons: &'a [String],
    advice: &'a [String],
    piece_count: u64,
    handles_before: u32,
    handles_after: u32,
    commits: u32,
    request_count: u64,
    requests: Vec<JsonRequest>,
}

#[derive(Serialize)]
struct JsonEdges {
    head: u64,
    tail: u64,
    old_tail: u64,
}

#[derive(Serialize)]
struct JsonRequest {
    op: &'static str,
    pos: u64,
    length: u64,
    fua: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
}

/// Runs it.
pub fn run(
    args: ExplainArgs,
    globals: &Globals,
    execute: impl FnOnce(Vec<OsString>, Watchers) -> ExitCode,
) -> Result<ExitCode, CliError> {
    for (given, name) in
        [(!globals.journals.is_empty(), "--journal"), (globals.overlay.is_some(), "--overlay")]
    {
        if !args.words.is_empty() && given {
            let hint = format!("{name} belongs to the rehearsed command: write it behind its name");
            return Err(CliError::usage(hint));
        }
    }
    if !args.words.is_empty() {
        return rehearse(args.words, args.memory.unwrap_or(MEMORY), globals, execute);
    }
    request(&args, globals).map(|()| ExitCode::SUCCESS)
}

/// Runs the command after `--`. The status is that of the command.
fn rehearse(
    words: Vec<OsString>,
    memory: u64,
    globals: &Globals,
    execute: impl FnOnce(Vec<OsString>, Watchers) -> ExitCode,
) -> Result<ExitCode, CliError> {
    if globals.watchers.trace.is_some() || globals.watchers.rehearsal.is_some() {
        return Err(CliError::usage("a rehearsal can be neither traced nor rehearsed"));
    }
    let name = words.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if !COMMANDS.contains(&&*name) {
        return Err(CliError::usage(format!(
            "explain rehearses commands that change volumes, and `{}` is none: {}",
            text::visible(name.as_bytes()),
            COMMANDS.join(", ")
        )));
    }
    let stdout = rustix::io::dup(rustix::stdio::stdout());
    let stdout = stdout.map_err(|error| refused(&error.into()))?;
    // The command's own output does not mix with the explanation.
    out::redirect(Path::new("/dev/null"))?;
    let rehearsal = Arc::new(Rehearsal::new(memory, globals.json, File::from(stdout)));
    let mut arguments = vec![OsString::from("uext4")];
    arguments.extend(words);
    let exit =
        execute(arguments, Watchers { rehearsal: Some(Arc::clone(&rehearsal)), ..Watchers::default() });
    rehearsal.finish().map_err(|error| refused(&error))?;
    Ok(exit)
}

fn refused(error: &io::Error) -> CliError {
    CliError::host(OsStr::new("standard output"), "write", error)
}

fn request(args: &ExplainArgs, globals: &Globals) -> Result<(), CliError> {
    let (Some(operand), Some(offset), Some(length)) = (&args.operand, args.offset, args.length) else {
        return Err(CliError::usage("explain needs a file, an offset and a length"));
    };
    if args.memory.is_some() {
        return Err(CliError::usage("--memory is for rehearsals: explain --memory SIZE -- COMMAND"));
    }
    let operand = Operand::parse(operand)?;
    if length == 0 {
        return Err(CliError::usage("a request of 0 bytes does nothing"));
    }
    // Nothing is written, so the volume is opened read-only; the plan is that of a writable one.
    let volume = operand.volume(&OpenHow::reading(globals, args.common.force, args.switches.switches))?;
    let file = operand.file(&volume)?;
    let sync = match (args.sync, args.dsync) {
        (true, _) => Sync::All,
        (false, true) => Sync::Data,
        (false, false) => Sync::None,
    };
    let query = Query { write: args.write, pos: offset, length, sync, queued: args.queued };
    let explanation = file.explain(&query).map_err(|error| operand.error(error))?;
    let mut out = Out::new();
    if globals.json {
        print_json(&mut out, &explanation)?;
    } else {
        print_text(&mut out, &operand, &query, &explanation)?;
    }
    out.finish()
}

fn print_json(out: &mut Out, explanation: &Explanation) -> Result<(), CliError> {
    let plan = &explanation.plan;
    let request = |request: &DeviceRequest| JsonRequest {
        op: request.op,
        pos: request.pos,
        length: request.length,
        fua: request.fua,
        cost: request.cost.map(|cost| cost.to_string()),
    };
    out.json(&JsonExplanation {
        route: route(plan.route),
        gate: gate(plan.gate),
        drain: plan.drain,
        counted: plan.counted,
        journal: journal(plan.journal),
        zero_edges: JsonEdges {
            head: plan.zero_edges.head,
            tail: plan.zero_edges.tail,
            old_tail: plan.zero_edges.old_tail,
        },
        zeroed: explanation.zeroed,
        durability: durability(plan.durability),
        completion: completion(plan),
        refused: explanation.refused.as_deref(),
        reasons: &explanation.reasons,
        advice: &explanation.advice,
        piece_count: explanation.piece_count,
        handles_before: explanation.journal.handles_before,
        handles_after: explanation.journal.handles_after,
        commits: explanation.journal.commits,
        request_count: explanation.request_count,
        requests: explanation.requests.iter().map(request).collect(),
    })
}

fn print_text(
    out: &mut Out,
    operand: &Operand,
    query: &Query,
    explanation: &Explanation,
) -> Result<(), CliError> {
    let plan = &explanation.plan;
    out.name(&operand.path)?;
    let verb = if query.write { "write" } else { "read" };
    let sync = match query.sync {
        Sync::None => "",
        Sync::Data => ", O_DSYNC",
        Sync::All => ", O_SYNC",
    };
    let queued = if query.queued { ", queued" } else { "" };
    writeln!(out, ": {verb} of {} bytes at byte {}{sync}{queued}", query.length, query.pos)?;
    writeln!(
        out,
        "plan: route {}, gate {}{}, {}, journal {}, durability {}, {}",
        route(plan.route),
        gate(plan.gate),
        if plan.drain { " after a drain" } else { "" },
        if plan.counted { "counted" } else { "not counted" },
        journal(plan.journal),
        durability(plan.durability),
        completion(plan)
    )?;
    if let Some(reason) = &explanation.refused {
        writeln!(out, "refused: {reason}")?;
    }
    list(out, "reasons", explanation.reasons.iter().cloned())?;
    list(
        out,
        "device requests (sectors of 512 bytes: first+count)",
        explanation.requests.iter().map(request_line),
    )?;
    list(out, "advice", explanation.advice.iter().cloned())
}

fn list(out: &mut Out, title: &str, lines: impl Iterator<Item = String>) -> Result<(), CliError> {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return writeln!(out, "{title}: none");
    }
    writeln!(out, "{title}:")?;
    lines.try_for_each(|line| writeln!(out, "  {line}"))
}

/// As `trace` prints requests: in sectors of 512 bytes.
fn request_line(request: &DeviceRequest) -> String {
    let sectors = format!("{}+{}", request.pos / 512, request.length / 512);
    let cost = request.cost.map_or(String::new(), |cost| format!(" ({cost})"));
    let line = match (request.op, request.fua) {
        ("read", _) => format!("R {sectors}"),
        ("write", false) => format!("W {sectors}"),
        ("write", true) => format!("W {sectors} FUA"),
        ("log", false) => format!("W {sectors} (log)"),
        ("log", true) => format!("W {sectors} FUA (log)"),
        ("home", _) => format!("W {sectors} (metadata)"),
        ("flush", _) => "F".into(),
        (op, _) => format!("{op} {} bytes in memory, nothing is sent", request.length),
    };
    line + &cost
}

fn route(route: Route) -> &'static str {
    match route {
        Route::SimpleRead => "simple-read",
        Route::GeneralRead => "general-read",
        Route::PastEnd => "past-end",
        Route::InlineRead => "inline-read",
        Route::InlineWrite => "inline-write",
        Route::DaxRead => "dax-read",
        Route::BouncedRead => "bounced-read",
        Route::Overwrite => "overwrite",
        Route::DaxOverwrite => "dax-overwrite",
        Route::BouncedOverwrite => "bounced-overwrite",
        Route::Allocate => "allocate",
        Route::DaxAllocate => "dax-allocate",
    }
}

fn gate(gate: GateMode) -> &'static str {
    match gate {
        GateMode::Shared => "shared",
        GateMode::Exclusive => "exclusive",
    }
}

fn journal(work: JournalWork) -> &'static str {
    match work {
        JournalWork::None => "none",
        JournalWork::Handle => "handle",
        JournalWork::Convert => "convert",
        JournalWork::Allocate => "allocate",
        JournalWork::AllocateConvert => "allocate-convert",
        JournalWork::Extend => "extend",
    }
}

fn durability(durability: Durability) -> &'static str {
    match durability {
        Durability::None => "none",
        Durability::Fua => "fua",
        Durability::WriteThrough => "write-through",
        Durability::Datasync => "datasync",
        Durability::Fsync => "fsync",
    }
}

fn completion(plan: &Plan) -> &'static str {
    match plan.finish {
        Finish::Asynchronous => "asynchronous",
        Finish::Synchronous => "synchronous",
    }
}
