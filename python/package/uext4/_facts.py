"""Facts, counters, checks and explanations as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True)
class Info:
    """What a volume and its device are."""

    label: str
    uuid: str
    block_size: int
    blocks: int
    inodes: int
    inode_size: int
    groups: int
    features: list[str]
    """As `dumpe2fs` prints them."""
    read_only: bool
    journal_blocks: int | None
    """Blocks of the journal; `None` without one."""
    recovery: str
    """What opening did with the journal: `clean`, `replayed`, `overlay` (in memory), …"""
    loss: str | None
    """Why committed changes could not be recovered, if any."""
    damaged_descriptors: str | None
    engine: str
    """How the device is driven: `file`, `sync`, `dax`, `nvme`, `mem`, `null`."""
    device: str
    layers: list[str]
    device_size: int
    logical_block: int
    """Positions and lengths of direct I/O are multiples of it."""
    memory_align: int
    """Addresses of direct I/O are multiples of it."""
    volatile_cache: bool
    fua: bool
    """A write can be made durable by itself."""
    notes: list[str]


@dataclass(frozen=True)
class StatFs:
    """How full a volume is. Blocks are blocks of the volume."""

    block_size: int
    blocks: int
    overhead: int
    """Blocks of fixed metadata."""
    free: int
    available: int
    """Free blocks that data of files can have."""
    inodes: int
    free_inodes: int


@dataclass(frozen=True)
class Stats:
    """Counters since the volume was opened: of routes, of the engine and of the journal."""

    simple_reads: int
    overwrites_without_handle: int
    dio_counted: int
    bytes_written: int
    dax_copies: int
    fua_writes: int
    shared_subblock_writes: int
    general_reads: int
    inline_reads: int
    inline_writes: int
    handles_started: int
    commits: int
    flushes: int
    exclusive_writes: int
    bounces: int
    map_loads: int
    drain_stalls: int
    allocations_refused: int
    would_block: int
    privileges_dropped: int
    allocations: int
    conversions: int
    extensions: int
    atomic_writes: int
    buffered_reads: int
    buffered_writes: int
    page_reads: int
    page_writes: int
    page_drops: int
    late_failures: int
    blocks_logged: int
    checkpoints: int
    home_writes: int
    fast_commits: int
    fast_commit_blocks: int
    full_commits_area: int
    full_commits_undeclared: int
    full_commits_file: int
    full_commits_unused: int

    def __sub__(self, earlier: Stats) -> Stats:
        """What was counted since an earlier reading."""
        return Stats(**{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in fields(self)})


@dataclass(frozen=True)
class Finding:
    """A fault or an oddity that a check found, with its place as far as it has one."""

    code: str
    """The kind of fault: the structure, a dot, the fault. It never changes."""
    severity: Literal["error", "warning"]
    text: str
    group: int | None
    inode: int | None
    logical_block: int | None
    block: int | None


@dataclass(frozen=True)
class NotExamined:
    """Something that a check did not examine."""

    what: str
    reason: str
    count: int


@dataclass(frozen=True)
class Counts:
    """What a check counted."""

    inodes: int
    directories: int
    files: int
    symlinks: int
    special: int
    entries: int
    blocks: int


@dataclass(frozen=True)
class CheckReport:
    """The outcome of a check."""

    clean: bool
    """Nothing is damaged; warnings may have been found."""
    findings: list[Finding]
    """The first ones of each kind."""
    totals: dict[str, int]
    """Number of findings by code, with those that are not listed."""
    notes: list[str]
    not_examined: list[NotExamined]
    counts: Counts


def check_report(found: dict[str, Any]) -> CheckReport:
    """A report of the fields that the native half gives."""
    return CheckReport(
        clean=found["clean"],
        findings=[Finding(**finding) for finding in found["findings"]],
        totals=found["totals"],
        notes=found["notes"],
        not_examined=[NotExamined(*missed) for missed in found["not_examined"]],
        counts=Counts(**found["counts"]),
    )


@dataclass(frozen=True)
class DeviceRequest:
    """A request to the device. Positions are bytes of the device."""

    op: str
    """`read`, `write`, `flush`, `log`, `home`, or `zero` (memory only)."""
    pos: int
    length: int
    fua: bool


@dataclass(frozen=True)
class Explanation:
    """What the engine would do with a request now, and why."""

    route: str
    gate: Literal["shared", "exclusive"]
    drain: bool
    counted: bool
    journal: str
    zero_edges: tuple[int, int, int]
    """Bytes zeroed before and after the data, and after the old end of the file."""
    zeroed: int
    durability: str
    completion: Literal["asynchronous", "synchronous"]
    refused: str | None
    reasons: list[str]
    advice: list[str]
    piece_count: int
    handles_before: int
    handles_after: int
    commits: int
    request_count: int
    requests: list[DeviceRequest]


def explanation(told: dict[str, Any]) -> Explanation:
    """An explanation of the fields that the native half gives."""
    requests = [DeviceRequest(*request) for request in told["requests"]]
    return Explanation(**{**told, "requests": requests})


@dataclass(frozen=True)
class Piece:
    """A piece of a file's map, in bytes."""

    logical: int
    physical: int
    """Byte of the device; 0 for a hole."""
    length: int
    state: str
    """`written`, `unwritten`, `hole` or `inline`."""


@dataclass(frozen=True)
class Made:
    """A volume that was made."""

    uuid: str
    size: int
    block_size: int
    blocks: int
    reserved_blocks: int
    free_blocks: int
    inodes: int
    free_inodes: int
    inode_size: int
    groups: int
    journal_blocks: int
    too_small_for_journal: bool
    """A journal was wanted, but the volume is too small for one."""
    backups: list[int]
    """Blocks with copies of the superblock."""
    features: list[str]
