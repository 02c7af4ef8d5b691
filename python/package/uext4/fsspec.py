"""The file system `ext4://` of fsspec: files inside a volume.

    pandas.read_parquet("ext4://data/part.parquet::file:///disk.img")
    fsspec.filesystem("ext4", fo="disk.img", read_only=False)
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat as modes
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from ._file import BUFFER_SIZE, File
from ._path import Path
from ._uext4 import NativeReader, Stat
from ._volume import Volume, open_volume, users_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LOCAL = (None, "file", "local")
_OF_FSSPEC = (
    "skip_instance_cache",
    "use_listings_cache",
    "listings_expiry_time",
    "max_paths",
    "asynchronous",
    "loop",
    "batch_size",
)
_CHUNK = 1 << 20


class _Device:
    """The volume that the file systems of this process on one device share.

    It is open for writing while one of them is for writing, and else for reading.
    """

    def __init__(self, name: str | PurePath) -> None:
        self._name = name
        self._lock = threading.RLock()
        self._users: dict[int, dict[str, Any]] = {}
        self._writers: set[int] = set()
        self._volume: Volume | None = None

    def join(self, user: int, read_only: bool, options: dict[str, Any]) -> None:
        """One more file system. One for writing closes a volume that is open for reading."""
        with self._lock:
            if not read_only and self._is_open() and not self._volume_is_writable():
                if self._files():
                    reason = "files of it are open by a file system for reading"
                    raise OSError(errno.EBUSY, reason, os.fspath(self._name))
                self._close()
            self._users[user] = options
            if not read_only:
                self._writers.add(user)
            try:
                self.volume(user)
            except BaseException:
                self.leave(user)
                raise

    def leave(self, user: int) -> None:
        """One less. With the last one for writing everything is durable, and the device free for readers."""
        with self._lock:
            self._users.pop(user, None)
            wrote = user in self._writers
            self._writers.discard(user)
            if self._is_open() and (not self._users or (wrote and not self._writers)):
                self._close()

    def volume(self, user: int) -> Volume:
        with self._lock:
            if user not in self._users:
                raise ValueError("the file system is closed")
            if not self._is_open():
                self._volume = open_volume(self._name, read_only=not self._writers, **self._users[user])
            assert self._volume is not None
            return self._volume

    def _is_open(self) -> bool:
        return self._volume is not None and not self._volume.closed

    def _volume_is_writable(self) -> bool:
        return self._volume is not None and self._volume.writable

    def _files(self) -> bool:
        return self._volume is not None and any(not file.closed for file in users_of(self._volume._users))

    def _close(self) -> None:
        volume, self._volume = self._volume, None
        if volume is not None:
            volume.close()


# A child process opens devices itself.
_devices: weakref.WeakValueDictionary[tuple[int, str], _Device] = weakref.WeakValueDictionary()
_devices_lock = threading.Lock()


def _device(name: str | PurePath) -> _Device:
    key = (os.getpid(), os.path.realpath(name) if os.path.exists(name) else os.fspath(name))
    with _devices_lock:
        device = _devices.get(key)
        if device is None:
            device = _devices[key] = _Device(name)
        return device


class Ext4FileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of a volume, in the convention of archives: `ext4://PATH::file:///disk.img`, or `fo="disk.img"`.

    `fo` is a device as `uext4.open` takes it. It is opened for reading, or with `read_only=False` for writing; all
    other options are those of `uext4.open`. A file that was written is durable when it is closed, names are with
    `sync()`, which `close()` includes. Directories that a file needs are made (`auto_mkdir`).

    fsspec keeps file systems: the volume stays open until `close()`, or the end of the program. File systems of one
    device share its volume, so those for reading see what one for writing does.
    """

    protocol = "ext4"
    root_marker = "/"

    def __init__(
        self,
        fo: str | os.PathLike[str] = "",
        *,
        read_only: bool = True,
        auto_mkdir: bool = True,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**{key: options.pop(key) for key in [*options] if key in _OF_FSSPEC})
        if target_protocol not in _LOCAL:
            raise ValueError(f"a volume is on a local device or image, not behind {target_protocol}://")
        if not fo:
            raise ValueError("name the image or device: fo=, or ext4://PATH::file:///disk.img")
        self.auto_mkdir = auto_mkdir
        self.read_only = read_only
        # As `uext4.open` takes it: a `pathlib.Path` is a file, text is in the device grammar.
        name = fo if isinstance(fo, PurePath) else str(stringify_path(fo))
        self._name = os.fspath(name)
        device = _device(name)
        device.join(id(self), read_only, options)
        self._device = device
        self._finalizer = weakref.finalize(self, device.leave, id(self))

    @property
    def volume(self) -> Volume:
        """The open volume."""
        return self._device.volume(id(self))

    def close(self) -> None:
        """Ends the file system, with all durable. The next one with these arguments is a new one.

        The volume is closed with the last file system for writing, or the last one of all.
        """
        cache = type(self)._cache
        for token in [token for token, instance in cache.items() if instance is self]:
            del cache[token]
        self._finalizer()

    def sync(self) -> None:
        """Makes everything durable, names included."""
        self.volume.sync()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return "/" + str(stringify_path(path)).removeprefix("ext4://").strip("/")

    def _path(self, path: str) -> Path:
        return self.volume.path(self._strip_protocol(path))

    def _change(self, path: str) -> Path:
        """A path of which something is to be changed."""
        if self.read_only:
            raise OSError(errno.EROFS, "the file system is for reading (read_only=False is for writing)", self._name)
        return self._path(path)

    @staticmethod
    def _facts(name: str, found: Stat) -> dict[str, Any]:
        kind = "directory" if modes.S_ISDIR(found.st_mode) else "file" if modes.S_ISREG(found.st_mode) else "other"
        return {
            "name": name,
            "size": found.st_size if kind == "file" else 0,
            "type": kind,
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "created": found.st_birthtime,
            "mtime": found.st_mtime,
        }

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Facts about a file. A symbolic link has those of what it leads to, if that exists."""
        here = self._path(path)
        found = here.lstat()
        if not modes.S_ISLNK(found.st_mode):
            return {**self._facts(str(here), found), "islink": False}
        found = here.stat() if here.exists() else found
        return {**self._facts(str(here), found), "islink": True, "destination": str(here.readlink())}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        here = self._path(path)
        if not here.is_dir():
            facts = self.info(path)
            return [facts] if detail else [facts["name"]]
        entries = sorted(here.scandir(), key=lambda entry: entry.name)
        if not detail:
            return [str(here / entry.name) for entry in entries]
        return [
            self.info(str(here / entry.name))
            if entry.is_symlink()
            else {**self._facts(str(here / entry.name), entry.stat()), "islink": False}
            for entry in entries
        ]

    def walk(
        self, path: str, maxdepth: int | None = None, topdown: bool = True, on_error: Any = "omit", **kwargs: Any
    ) -> Iterator[tuple[str, Any, Any]]:
        """As fsspec's, but links to directories are listed among these and not entered: they may lead out of the tree
        or around in it. So do `find`, `glob("**")`, `du`, and recursive copies and removals."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        detail = kwargs.pop("detail", False)
        # Directories to enter, and those whose contents have been told.
        waiting: list[tuple[str, int] | tuple[str, Any, Any]] = [(self._strip_protocol(path), 1)]
        while waiting:
            here = waiting.pop()
            if len(here) == 3:
                yield here
                continue
            name, depth = here
            try:
                listing = self.ls(name)
            except OSError as error:
                if on_error == "raise":
                    raise
                if callable(on_error):
                    on_error(error)
                continue
            found = {"" if one["name"] == name else one["name"].rsplit("/", 1)[-1]: one for one in listing}
            dirs = {key: one for key, one in found.items() if key and one["type"] == "directory"}
            files = {key: one for key, one in found.items() if key not in dirs}
            told = (name, dirs, files) if detail else (name, list(dirs), list(files))
            enters = {key: one["name"] for key, one in dirs.items() if not one["islink"]}
            if topdown:
                yield told
            else:
                waiting.append(told)
            # Who is told may take directories out.
            keys = [key for key in told[1] if key in enters] if maxdepth is None or depth < maxdepth else []
            waiting.extend((enters[key], depth + 1) for key in reversed(keys))

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self._path(path).exists()

    def created(self, path: str) -> datetime:
        born = self._path(path).stat().st_birthtime
        if born is None:
            raise NotImplementedError("inodes of this volume have no time of creation")
        return datetime.fromtimestamp(born, tz=timezone.utc)

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(self._path(path).stat().st_mtime, tz=timezone.utc)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        self._change(path).mkdir(parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._change(path).mkdir(parents=True, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self._change(path).rmdir()

    def rm_file(self, path: str) -> None:
        here = self._change(path)
        if here.is_dir(follow_symlinks=False):
            here.rmdir()
        else:
            here.unlink()

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        if not recursive or maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        removed: set[PurePosixPath] = set()
        for one in self.expand_path(path):
            here = self._change(one)
            if here.is_dir(follow_symlinks=False):
                here.rmtree()
                removed.add(PurePosixPath(one))
            else:
                # What patterns find in a directory has gone with it.
                here.unlink(missing_ok=not removed.isdisjoint(PurePosixPath(one).parents))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        source, target = self._path(path1), self._change(path2)
        if source.is_dir():
            target.mkdir(parents=True, exist_ok=True)
            return
        if target.exists() and source.samefile(target):
            raise shutil.SameFileError(errno.EINVAL, "a file cannot be copied onto itself", str(target))
        self._make_room(target)
        with source.open("rb", 0) as read, self._open(path2, "wb") as write:
            shutil.copyfileobj(read, write, _CHUNK)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Bytes of a file; `start` and `end` are those of a slice."""
        with self.volume.open_raw(self._path(path), "r") as file:
            first, last, _ = slice(start, end).indices(file.size)
            return file.pread(max(0, last - first), first)

    def mv(
        self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any
    ) -> None:
        """Renames: in one transaction, whatever is below."""
        source, target = self._path(path1), self._change(path2)
        if target.is_dir():
            target = target / source.name
        self._make_room(target)
        source.rename(target)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        here = self._change(path)
        self._make_room(here)
        here.touch()
        if truncate:
            here.truncate(0)

    def chmod(self, path: str, mode: int) -> None:
        self._change(path).chmod(mode)

    def _make_room(self, path: Path) -> None:
        if self.auto_mkdir:
            path.parent.mkdir(parents=True, exist_ok=True)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> io.BufferedIOBase:
        if mode == "rb":
            return _Reader(self.volume.open_raw(self._path(path), "r"))
        here = self._change(path)
        self._make_room(here)
        if autocommit:
            return _writer(self.volume.open_raw(here, mode))
        if mode[0] not in "wx":
            raise NotImplementedError(f"a file of mode {mode!r} in a transaction")
        if mode[0] == "x" and here.exists(follow_symlinks=False):
            raise FileExistsError(str(here))
        # Beside its name until the transaction is complete.
        hidden = here.with_name(f".{uuid.uuid4().hex}.part")
        return _writer(self.volume.open_raw(hidden, mode), lambda: hidden.replace(here), hidden.unlink)


class _Reader(io.BufferedIOBase):
    """A file for reading.

    A thread that seeks and reads without letting the interpreter's lock go reads there, whatever others do meanwhile.
    DuckDB relies on it; `io.BufferedReader` does not promise it.
    """

    def __init__(self, raw: File) -> None:
        self.raw = raw
        reader = NativeReader(raw._native)
        # Without a Python function around them, in which threads may take turns.
        for name in ("seek", "tell", "read", "read1", "peek", "readinto", "readline"):
            setattr(self, name, getattr(reader, name))

    def __del__(self) -> None:
        """As `File`: `fs.open(path).read()` lets go of this object before the call."""

    @property
    def name(self) -> str:
        return self.raw.name

    @property
    def mode(self) -> str:
        return self.raw.mode

    @property
    def size(self) -> int:
        """Bytes of the file, which `read_block` of fsspec asks for."""
        return self.raw.size

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.raw!r}>"

    def readinto1(self, buffer: Buffer, /) -> int:
        return self.readinto(buffer)

    def readable(self) -> bool:
        return self.raw.readable()

    def seekable(self) -> bool:
        return self.raw.seekable()

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.raw.close()


class _Writing:
    """A buffered file that is durable when it is closed, and may have to wait for its name."""

    _name: Callable[[], object] | None = None
    _forget: Callable[[], object] | None = None

    def close(self) -> None:
        raw: File = self.raw  # type: ignore[attr-defined]
        if not raw.closed:
            try:
                self.flush()  # type: ignore[attr-defined]
                raw.fsync()
            finally:
                super().close()  # type: ignore[misc]

    def commit(self) -> None:
        """Gives a file of a transaction its name."""
        if self._name is not None:
            self._name()

    def discard(self) -> None:
        """Removes a file of a transaction that was given up."""
        if self._forget is not None:
            self._forget()


class _Writer(_Writing, io.BufferedWriter):
    pass


class _ReaderWriter(_Writing, io.BufferedRandom):
    pass


def _writer(
    raw: File, name: Callable[[], object] | None = None, forget: Callable[[], object] | None = None
) -> _Writer | _ReaderWriter:
    kind = _ReaderWriter if "+" in raw.mode else _Writer
    file = kind(raw, BUFFER_SIZE)
    file._name, file._forget = name, forget
    return file
