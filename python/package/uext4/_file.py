"""Open files, as those of the `io` module."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, cast

from . import _uext4
from ._facts import Explanation, Piece, explanation

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._volume import Volume

BUFFER_SIZE = 64 << 10
"""Bytes of the buffer of files that are opened with one."""


class PWrite(Protocol):
    """The type of `File.pwrite`."""

    def __call__(
        self,
        data: Buffer,
        pos: int,
        *,
        dsync: bool = False,
        sync: bool = False,
        nowait: bool = False,
        atomic: bool = False,
    ) -> int: ...


class File(io.RawIOBase):
    """An open file without a buffer in Python, from `Path.open(buffering=0)` or the `raw` of a buffered one.

    `preadinto`, `pread` and `pwrite` name a position and leave the file's own alone. Data goes from and to the memory
    of the caller without a copy in Python: any object with the buffer protocol. Every call may come from any thread,
    and the interpreter's lock is not held meanwhile.
    """

    # Those of the native half, without a Python function around them.
    preadinto: Callable[[Buffer, int], int]
    """`preadinto(buffer, pos)`: reads into a writable buffer from byte `pos` on. Fewer bytes at the end of the file."""
    pread: Callable[[int, int], bytes]
    """`pread(size, pos)`: up to `size` bytes from byte `pos` on."""
    pwrite: PWrite
    """`pwrite(data, pos, *, dsync=False, sync=False, nowait=False, atomic=False)`: writes at byte `pos`.

    With `dsync` (`O_DSYNC`) or `sync` (`O_SYNC`) the bytes are durable when it returns; `atomic`: never torn by a
    crash; `nowait`: `BlockingIOError` rather than a wait."""

    def __init__(self, volume: Volume, native: _uext4.NativeFile, name: str, mode: str) -> None:
        self._native = native
        self._volume = volume
        self._reads = "r" in mode or "+" in mode
        self._writes = mode[0] in "wxa" or "+" in mode
        self.name = name
        # As `io.FileIO` has it: w+ is r+ once the file is open.
        self.mode = "rb+" if mode == "w+" else mode[0] + "b" + mode[1:]
        self.preadinto = native.preadinto
        self.pread = native.pread
        self.pwrite = native.pwrite

    def __del__(self) -> None:
        """Unlike `IOBase` it does not close: `volume.open_raw(path).pread(…)` lets go of this object before the call.

        The native half closes itself when nobody has it any more.
        """

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"mode={self.mode!r}"
        return f"<uext4.File {self.name!r} {state}>"

    @property
    def volume(self) -> Volume:
        return self._volume

    def readable(self) -> bool:
        self._check_open()
        return self._reads

    def writable(self) -> bool:
        self._check_open()
        return self._writes

    def seekable(self) -> bool:
        self._check_open()
        return True

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _check(self, able: bool, what: str) -> None:
        self._check_open()
        if not able:
            raise io.UnsupportedOperation(f"the file is not open for {what}")

    def readinto(self, buffer: Buffer, /) -> int:
        self._check(self._reads, "reading")
        return self._native.readinto(buffer)

    def readall(self) -> bytes:
        self._check(self._reads, "reading")
        return self._native.readall()

    def write(self, data: Buffer, /) -> int:
        self._check(self._writes, "writing")
        return self._native.write(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check_open()
        if whence == os.SEEK_CUR:
            return self._native.seek_by(offset)
        if whence == os.SEEK_END:
            offset += self._native.size
        elif whence in (os.SEEK_DATA, os.SEEK_HOLE):
            found = self._native.seek_data(offset, whence == os.SEEK_HOLE)
            if found is None:
                raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), self.name)
            offset = found
        elif whence != os.SEEK_SET:
            raise ValueError(f"invalid whence: {whence}")
        if offset < 0:
            raise OSError(errno.EINVAL, "a position before the file", self.name)
        return self._native.seek(offset)

    def tell(self) -> int:
        self._check_open()
        return self._native.tell()

    def truncate(self, size: int | None = None, /) -> int:
        self._check(self._writes, "writing")
        size = self._native.tell() if size is None else size
        self._native.truncate(size)
        return size

    @property
    def size(self) -> int:
        """Bytes of the file, with those that are not on the device yet."""
        return self._native.size

    @property
    def inode(self) -> int:
        return self._native.inode

    def stat(self) -> _uext4.Stat:
        return self._native.stat()

    def fsync(self) -> None:
        """Everything written and all metadata survive a crash from here on."""
        self._native.sync(False)

    def fdatasync(self) -> None:
        """Everything written, and what is needed to read it, survive a crash from here on."""
        self._native.sync(True)

    def fallocate(
        self,
        pos: int,
        length: int,
        how: Literal["allocate", "keep-size", "punch", "zero", "zero-keep-size", "collapse", "insert"] = "allocate",
    ) -> None:
        """Allocates, frees, zeroes or moves blocks, as `fallocate(2)`."""
        self._native.fallocate(how, pos, length)

    def prepare(self, size: int) -> None:
        """Makes each later write to the first `size` bytes a pure overwrite of written blocks."""
        self._native.prepare(size)

    def map(self) -> list[Piece]:
        """Where the file's bytes are on the device."""
        return [Piece(*piece) for piece in self._native.map()]

    def explain(
        self,
        pos: int,
        length: int,
        *,
        write: bool = False,
        sync: Literal["none", "data", "all"] = "none",
        queued: bool = False,
    ) -> Explanation:
        """What a read or write would do now, and why. Changes nothing."""
        question = {"write": write, "pos": pos, "length": length, "sync": sync, "queued": queued}
        return explanation(self._native.explain(question))

    def close(self) -> None:
        """Lets the file go. What was written becomes durable with the next sync of the file or the volume."""
        if not self.closed:
            try:
                super().close()
            finally:
                self._native.close()


def parse_mode(mode: str) -> tuple[str, bool]:
    """The mode of `open()` without b and t, and whether it is for text."""
    letters = set(mode)
    kinds = letters & set("rwxa")
    if len(letters) != len(mode) or letters - set("rwxabt+") or len(kinds) != 1 or {"b", "t"} <= letters:
        raise ValueError(f"invalid mode: {mode!r}")
    return kinds.pop() + ("+" if "+" in letters else ""), "b" not in letters


def how_to_open(
    mode: str, perm: int, owner: tuple[int, int], direct: bool, limited: bool
) -> dict[str, Any]:
    """The options of a file for the native half."""
    create = {"r": "no", "w": "missing", "a": "missing", "x": "new"}[mode[0]]
    return {
        "read": mode[0] == "r" or "+" in mode,
        "write": mode[0] in "wx" or mode == "r+",
        "append": mode[0] == "a",
        "truncate": mode[0] == "w",
        "create": create,
        "mode": perm,
        "owner": owner,
        "direct": direct,
        "limited": limited,
    }


def wrapped(
    raw: File, mode: str, text: bool, buffering: int, encoding: str | None, errors: str | None, newline: str | None
) -> IO[Any]:
    """A file with the buffers that `open()` would give it."""
    if not text and (encoding, errors, newline) != (None, None, None):
        raise ValueError("binary mode takes no encoding, errors or newline")
    if buffering == 0:
        if text:
            raise ValueError("can't have unbuffered text I/O")
        return cast(IO[Any], raw)
    by_line = buffering == 1 and text
    size = BUFFER_SIZE if buffering in (-1, 1) else buffering
    buffered: io.BufferedReader | io.BufferedWriter | io.BufferedRandom
    if "+" in mode:
        buffered = io.BufferedRandom(raw, size)
    elif mode == "r":
        buffered = io.BufferedReader(raw, size)
    else:
        buffered = io.BufferedWriter(raw, size)
    if not text:
        return buffered
    return io.TextIOWrapper(buffered, io.text_encoding(encoding), errors, newline, by_line)
