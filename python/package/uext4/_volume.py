"""Volumes."""

from __future__ import annotations

import builtins
import io
import os
import weakref
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import IO, Any, Literal, cast

from . import _uext4
from ._aio import AsyncQueue
from ._facts import CheckReport, Info, StatFs, Stats, check_report
from ._file import File, how_to_open, parse_mode, wrapped
from ._make import StrPath
from ._path import Path, VolumePath, absolute
from ._queue import Queue


def _umask() -> int:
    """The permissions that this process does not give. Asking by `os.umask` would change them for other threads."""
    with builtins.open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


_RAW = 2


def _layer(user: object) -> int:
    return 0 if isinstance(user, io.TextIOBase) else 1 if isinstance(user, io.BufferedIOBase) else _RAW


def users_of(users: weakref.WeakSet[Any]) -> list[Any]:
    """What is in the set now. Other threads may open files meanwhile."""
    while True:
        try:
            return list(users)
        except RuntimeError:
            # The set was changed while it was read.
            continue


def _close(native: _uext4.NativeVolume, users: weakref.WeakSet[Any]) -> None:
    """Closes all that uses a volume, then the volume. Of several failures the first is raised."""
    if native.closed or not native.is_ours:
        return
    failure: BaseException | None = None
    # What wraps a file writes to it when it is closed, so it comes first.
    for user in sorted(users_of(users), key=_layer):
        try:
            user.close()
        except BaseException as error:
            detached = isinstance(error, ValueError) and _layer(user) < _RAW
            failure = failure or (None if detached else error)
    try:
        native.close()
    except BaseException as error:
        failure = failure or error
    if failure is not None:
        raise failure


class Volume:
    """An open volume, from `uext4.open`. A context manager: it is closed, and all is durable, at the end.

    Every call may come from any thread. A volume that was opened before a `fork` belongs to the parent: in the child
    each use of it raises `PermissionError`.
    """

    def __init__(self, device: StrPath, how: dict[str, Any], owner: tuple[int, int], umask: int) -> None:
        self._device = os.fsdecode(device)
        self._native = _uext4.NativeVolume(device, how)
        self._owner = owner
        self._umask = umask
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._closing = False
        # A volume that nobody closes is closed when it is forgotten, or at the end of the program.
        self._finalizer = weakref.finalize(self, _close, self._native, self._users)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "read-write" if self.writable else "read-only"
        return f"<uext4.Volume {self._device!r} {state}>"

    def __enter__(self) -> Volume:
        if self.closed:
            raise ValueError("the volume is closed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files and queues that are open, makes all changes durable and writes them home.

        The device is free for others then. Everything but a second `close` raises `ValueError` afterwards. A failure
        to write is an exception; the volume is closed in any case.
        """
        if not self._native.is_ours:
            self._native.close()
        self._closing = True
        self._finalizer.detach()
        _close(self._native, self._users)

    @property
    def closed(self) -> bool:
        return self._native.closed

    @property
    def device(self) -> str:
        """The device as it was named."""
        return self._device

    @property
    def writable(self) -> bool:
        return self._native.writable

    @property
    def block_size(self) -> int:
        return self._native.block_size

    @property
    def alignment(self) -> tuple[int, int]:
        """What direct I/O obeys: multiples of bytes for positions and lengths, and for addresses."""
        return self._native.alignment

    @property
    def maker(self) -> tuple[int, int, int]:
        """Owner and group of what is made, and the permissions that it does not get."""
        return (*self._owner, self._umask)

    @property
    def root(self) -> Path:
        """The root directory."""
        return Path(self, "/")

    def path(self, *parts: VolumePath) -> Path:
        """A path in this volume. It begins at the root, with or without a slash in front."""
        return Path(self, *parts)

    def open(
        self,
        path: VolumePath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        perm: int | None = None,
        direct: bool = False,
        limited: bool = False,
    ) -> IO[Any]:
        """Opens a file, as the function `open`: a `File`, or one of the classes of `io` around it.

        `perm`: permissions of a file that is made, without the umask; `direct`: nothing of the file is kept in memory,
        requests go to the device at once; `limited`: limits of quota hold.
        """
        plain, text = parse_mode(mode)
        if text:
            encoding = io.text_encoding(encoding)
        raw = self.open_raw(path, plain, perm=perm, direct=direct, limited=limited)
        try:
            file = wrapped(raw, plain, text, buffering, encoding, errors, newline)
        except BaseException:
            raw.close()
            raise
        self._keep(file)
        if text:
            self._keep(cast(io.TextIOWrapper, file).buffer)
        return file

    def open_raw(
        self,
        path: VolumePath,
        mode: str = "r",
        *,
        perm: int | None = None,
        direct: bool = False,
        limited: bool = False,
    ) -> File:
        """Opens a file without a buffer: `mode` is r, r+, w, w+, x, x+, a or a+, for bytes."""
        plain, _ = parse_mode(mode)
        name = absolute(path)
        bits = 0o666 & ~self._umask if perm is None else perm
        native = self._native.open_file(name, how_to_open(plain, bits, self._owner, direct, limited))
        if plain[0] == "a":
            native.seek(native.size)
        raw = File(self, native, name, plain)
        self._keep(raw)
        return raw

    def _keep(self, user: Any) -> None:
        """Notes what is to be closed before the volume."""
        self._users.add(user)
        if self._closing:
            # Who closes the volume in another thread may have looked before.
            user.close()
            raise ValueError("the volume is closed")

    def walk(
        self, path: VolumePath = "/", *, stat: bool = True, max_depth: int | None = None
    ) -> Iterator[_uext4.Entry]:
        """Everything below a directory, itself first, each directory before its contents; links are not followed.

        Much quicker than listing each directory: attributes are read in the order of the device, without them
        (`stat=False`) only names are. An entry that cannot be read is an exception; the next call of `next` goes on
        with the rest.
        """
        return self._native.walk(absolute(path), stat, max_depth, self)

    def queue(
        self,
        depth: int = 64,
        *,
        buffer_bytes: int | None = None,
        register_buffers: Literal["no", "try", "require"] = "try",
    ) -> Queue:
        """A queue of asynchronous requests that the program submits and reaps: `depth` at once."""
        native = self._native.queue(depth, {"buffer_bytes": buffer_bytes, "register_buffers": register_buffers})
        queue = Queue(native, depth)
        self._keep(queue)
        return queue

    def aio(
        self,
        depth: int = 64,
        *,
        buffer_bytes: int | None = None,
        register_buffers: Literal["no", "try", "require"] = "try",
    ) -> AsyncQueue:
        """A queue for asyncio: its requests are awaited. It belongs to the loop that uses it first."""
        native = self._native.queue(depth, {"buffer_bytes": buffer_bytes, "register_buffers": register_buffers})
        queue = AsyncQueue(native, depth)
        self._keep(queue)
        return queue

    def sync(self) -> None:
        """Makes everything before this call durable: names, attributes, and data of every file."""
        self._native.sync()

    def tick(self) -> None:
        """Commits what is older than `commit_interval`: for programs that opened with `background=False`."""
        self._native.tick()

    def trim(self, start: int = 0, length: int = 2**63, minimum: int = 0) -> int:
        """Tells the device which blocks are free, in runs of `minimum` bytes at least. Returns how many bytes."""
        return self._native.trim(start, length, minimum)

    def info(self) -> Info:
        """What the volume and its device are."""
        return Info(**self._native.info())

    def statfs(self) -> StatFs:
        """How full the volume is."""
        return StatFs(**self._native.statfs())

    def stats(self) -> Stats:
        """Counters since it was opened."""
        return Stats(**self._native.stats())

    def check(self, *, threads: int | None = None, per_kind: int = 100) -> CheckReport:
        """Looks for damage, in a volume that is open read-only: one that is changed meanwhile is judged wrongly."""
        if self.writable:
            raise ValueError("a volume is checked read-only: close it, then uext4.check(device)")
        return check_report(self._native.check(threads, per_kind))


def open_volume(
    device: StrPath,
    *,
    read_only: bool = False,
    force: bool = False,
    background: bool = True,
    reserved: bool = False,
    discard: bool = False,
    keep_set_id: bool = False,
    atime: Literal["off", "relatime", "strict"] = "off",
    commit_interval: float | None = None,
    metadata_budget: int | None = None,
    map_budget: int | None = None,
    inode_budget: int | None = None,
    name_budget: int | None = None,
    page_budget: int | None = None,
    journals: Iterable[StrPath] = (),
    switches: str | None = None,
    owner: tuple[int, int] | None = None,
    umask: int | None = None,
) -> Volume:
    """Opens the volume on a device: `disk.img`, `/dev/nvme0n1p3`, `disk.img?partition=2`, `dax:…`. The name in an
    `os.PathLike` is taken as it is, whatever characters it has.

    For writing, unless `read_only`: then nothing is ever written to the device, and a journal that is not empty is
    replayed in memory. `force` reads although another process may write. `background` commits changes every five
    seconds (`commit_interval`) in a thread of the library.

    Budgets are bytes kept in memory: of metadata blocks, of the map of one file, of unused inodes, of names, and of
    files (`page_budget`; 0: every request goes to the device at once). `reserved`: data may have the blocks set aside
    for root; `discard`: the device is told of blocks that are freed; `keep_set_id`: writes leave set-user-id alone;
    `journals`: devices among which the journal is, if it is outside; `switches`: optimisations that are off.

    `owner` and `umask` are those of what is made; by default those of this process.
    """
    how = {
        "read_only": read_only,
        "force": force,
        "background": background and not read_only,
        "reserved": reserved,
        "discard": discard,
        "keep_set_id": keep_set_id,
        "atime": atime,
        "commit_interval": commit_interval,
        "metadata_budget": metadata_budget,
        "map_budget": map_budget,
        "inode_budget": inode_budget,
        "name_budget": name_budget,
        "page_budget": page_budget,
        "journals": list(journals),
        "switches": switches,
    }
    made_by = (os.geteuid(), os.getegid()) if owner is None else owner
    return Volume(device, how, made_by, _umask() if umask is None else umask)
