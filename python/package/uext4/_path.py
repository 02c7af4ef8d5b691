"""Paths in volumes, as those of `pathlib`."""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Union

from . import _uext4

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._volume import Volume

VolumePath = Union[str, bytes, PurePosixPath, "Path"]
"""What names something in a volume. `bytes` are decoded by `os.fsdecode`."""

_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_WILD = re.compile(r"[*?\[]")


def _text(part: VolumePath) -> str:
    if isinstance(part, Path):
        return str(part)
    if isinstance(part, (str, bytes, PurePosixPath)):
        return os.fsdecode(part)
    raise TypeError(f"a path in a volume is str, bytes or PurePosixPath, not {type(part).__name__}")


def absolute(*parts: VolumePath) -> str:
    """The path from the root, with one slash in front."""
    joined = PurePosixPath("/", *(_text(part) for part in parts))
    return "/" + str(joined).lstrip("/")


class Path:
    """A path in a volume, from `volume.root / "name"` or `volume.path("/a/b")`.

    It has what `pathlib.Path` has, but is no `os.PathLike`: the host's functions must not take it for a path of
    theirs. Names that are not UTF-8 have surrogates, as from `os.fsdecode`.
    """

    __slots__ = ("_pure", "_volume")

    def __init__(self, volume: Volume, *parts: VolumePath) -> None:
        self._volume = volume
        self._pure = PurePosixPath(absolute(*parts))

    def _with(self, pure: PurePosixPath | str) -> Path:
        return Path(self._volume, pure)

    # The path itself.

    @property
    def volume(self) -> Volume:
        return self._volume

    def __str__(self) -> str:
        return str(self._pure)

    def __repr__(self) -> str:
        return f"<uext4.Path {str(self)!r}>"

    def __bytes__(self) -> bytes:
        return os.fsencode(str(self))

    def __hash__(self) -> int:
        return hash((id(self._volume), self._pure))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self._volume is other._volume and self._pure == other._pure

    def __lt__(self, other: Path) -> bool:
        return self._pure < other._pure if isinstance(other, Path) else NotImplemented

    def __le__(self, other: Path) -> bool:
        return self._pure <= other._pure if isinstance(other, Path) else NotImplemented

    def __gt__(self, other: Path) -> bool:
        return self._pure > other._pure if isinstance(other, Path) else NotImplemented

    def __ge__(self, other: Path) -> bool:
        return self._pure >= other._pure if isinstance(other, Path) else NotImplemented

    def __truediv__(self, name: VolumePath) -> Path:
        return Path(self._volume, self._pure, name)

    def joinpath(self, *parts: VolumePath) -> Path:
        return Path(self._volume, self._pure, *parts)

    @property
    def parts(self) -> tuple[str, ...]:
        return self._pure.parts

    @property
    def name(self) -> str:
        return self._pure.name

    @property
    def stem(self) -> str:
        return self._pure.stem

    @property
    def suffix(self) -> str:
        return self._pure.suffix

    @property
    def suffixes(self) -> list[str]:
        return self._pure.suffixes

    @property
    def parent(self) -> Path:
        return self._with(self._pure.parent)

    @property
    def parents(self) -> tuple[Path, ...]:
        return tuple(self._with(parent) for parent in self._pure.parents)

    def with_name(self, name: str) -> Path:
        return self._with(self._pure.with_name(name))

    def with_stem(self, stem: str) -> Path:
        return self._with(self._pure.with_stem(stem))

    def with_suffix(self, suffix: str) -> Path:
        return self._with(self._pure.with_suffix(suffix))

    def relative_to(self, other: VolumePath) -> PurePosixPath:
        return self._pure.relative_to(absolute(other))

    def is_relative_to(self, other: VolumePath) -> bool:
        return self._pure.is_relative_to(absolute(other))

    def match(self, pattern: str) -> bool:
        return self._pure.match(pattern)

    def as_posix(self) -> str:
        return str(self)

    # What it leads to.

    @property
    def _native(self) -> _uext4.NativeVolume:
        return self._volume._native

    def stat(self, *, follow_symlinks: bool = True) -> _uext4.Stat:
        return self._native.stat(str(self), follow_symlinks)

    def lstat(self) -> _uext4.Stat:
        return self.stat(follow_symlinks=False)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self._mode(follow_symlinks) != 0

    def _mode(self, follow_symlinks: bool = True) -> int:
        """The mode; 0 if nothing is there."""
        try:
            return self.stat(follow_symlinks=follow_symlinks).st_mode
        except OSError as error:
            if error.errno in _MISSING:
                return 0
            raise

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISDIR(self._mode(follow_symlinks))

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return stat.S_ISREG(self._mode(follow_symlinks))

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(self._mode(False))

    def is_fifo(self) -> bool:
        return stat.S_ISFIFO(self._mode())

    def is_socket(self) -> bool:
        return stat.S_ISSOCK(self._mode())

    def is_block_device(self) -> bool:
        return stat.S_ISBLK(self._mode())

    def is_char_device(self) -> bool:
        return stat.S_ISCHR(self._mode())

    def samefile(self, other: VolumePath) -> bool:
        theirs = other if isinstance(other, Path) else self._with(absolute(other))
        mine, its = self.stat(), theirs.stat()
        return (mine.st_dev, mine.st_ino) == (its.st_dev, its.st_ino)

    def readlink(self) -> PurePosixPath:
        """The target of a symbolic link, as it is stored."""
        return PurePosixPath(self._native.readlink(str(self)))

    def resolve(self, strict: bool = False) -> Path:
        """The path without symbolic links, `.` and `..`. With `strict` all of it must exist."""
        try:
            return self._with(self._native.canonicalize(str(self)))
        except (FileNotFoundError, NotADirectoryError):
            if strict or self.parent == self:
                raise
        if self.is_symlink():
            return Path(self._volume, self.parent, self.readlink()).resolve()
        above = self.parent.resolve()
        return above.parent if self.name == ".." else above / self.name

    # Directories.

    def iterdir(self) -> Iterator[Path]:
        """The entries of a directory, in the order of the directory."""
        for name in self._native.list_dir(str(self)):
            yield self / name

    def scandir(self) -> list[_uext4.Entry]:
        """The entries of a directory with their attributes, as `os.scandir`."""
        return self._native.scan_dir(str(self))

    def walk(
        self,
        top_down: bool = True,
        on_error: Callable[[OSError], object] | None = None,
        follow_symlinks: bool = False,
    ) -> Iterator[tuple[Path, list[str], list[str]]]:
        """(directory, names of directories, names of others) for it and all below, as `pathlib.Path.walk`.

        `Volume.walk` is much quicker.
        """
        waiting: list[Path | tuple[Path, list[str], list[str]]] = [self]
        while waiting:
            here = waiting.pop()
            if isinstance(here, tuple):
                yield here
                continue
            try:
                entries = here.scandir()
            except OSError as error:
                if on_error is not None:
                    on_error(error)
                continue
            directories: list[str] = []
            others: list[str] = []
            for entry in entries:
                leads = entry.is_symlink() and follow_symlinks and (here / entry.name).is_dir()
                (directories if entry.is_dir() or leads else others).append(entry.name)
            if top_down:
                yield here, directories, others
            else:
                waiting.append((here, directories, others))
            waiting.extend(here / name for name in reversed(directories))

    def glob(self, pattern: str) -> Iterator[Path]:
        """What matches a pattern below this directory. `**` does not follow symbolic links."""
        parts = PurePosixPath(pattern).parts
        if not parts:
            raise ValueError(f"unacceptable pattern: {pattern!r}")
        if pattern.startswith("/"):
            raise NotImplementedError("patterns begin below the directory")
        several = parts.count("**") > 1
        seen: set[str] = set()
        for found in self._select(str(self), list(parts)):
            if several:
                if found in seen:
                    continue
                seen.add(found)
            yield self._with(found)

    def rglob(self, pattern: str) -> Iterator[Path]:
        """`glob` of the pattern in this directory and all below."""
        if not PurePosixPath(pattern).parts:
            raise ValueError(f"unacceptable pattern: {pattern!r}")
        return self.glob(f"**/{pattern}")

    def _select(self, base: str, parts: list[str]) -> Iterator[str]:
        part, rest = parts[0], parts[1:]
        if part == "**":
            yield from self._below(base, rest)
        elif _WILD.search(part):
            matches = re.compile(fnmatch.translate(part)).match
            for name in self._names(base):
                if matches(name):
                    yield from self._go_on(_join(base, name), rest)
        else:
            found = _join(base, part)
            if rest or self._with(found).exists(follow_symlinks=False):
                yield from self._go_on(found, rest)

    def _go_on(self, found: str, rest: list[str]) -> Iterator[str]:
        if rest:
            yield from self._select(found, rest)
        else:
            yield found

    def _names(self, base: str) -> list[str]:
        """Names in a directory; none in what is no directory."""
        try:
            return self._native.list_dir(base)
        except OSError as error:
            if error.errno in _MISSING:
                return []
            raise

    def _below(self, base: str, rest: list[str]) -> Iterator[str]:
        if not self._with(base).is_dir():
            return
        walk = self._native.walk(base, False, None)
        if len(rest) == 1 and rest[0] != "**" and rest[0] != "..":
            # One pattern of a name: one walk finds it everywhere.
            matches = re.compile(fnmatch.translate(rest[0])).match
            yield from (entry.path for entry in walk if entry.depth > 0 and matches(entry.name))
        elif rest:
            for entry in walk:
                if entry.is_dir():
                    yield from self._select(entry.path, rest)
        else:
            yield from (entry.path for entry in walk)

    # Contents.

    def open(
        self,
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
        """Opens the file: `Volume.open`."""
        volume = self._volume
        return volume.open(
            self, mode, buffering, encoding, errors, newline, perm=perm, direct=direct, limited=limited
        )

    def read_bytes(self) -> bytes:
        """All bytes, at most 1 GiB: a few blocks can claim to be a file of 2**60 bytes."""
        return self._native.read_whole(str(self))

    def write_bytes(self, data: Buffer) -> int:
        with self._volume.open_raw(self, "w") as file:
            return file.write(data)

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        with self.open("r", encoding=encoding, errors=errors) as file:
            return str(file.read())

    def write_text(
        self, data: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> int:
        if not isinstance(data, str):
            raise TypeError(f"data must be str, not {type(data).__name__}")
        with self.open("w", encoding=encoding, errors=errors, newline=newline) as file:
            return int(file.write(data))

    # Changes of names.

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        try:
            self._native.mkdir(str(self), mode, self._volume.maker)
        except FileNotFoundError:
            if not parents or self.parent == self:
                raise
            self.parent.mkdir(parents=True, exist_ok=True)
            self.mkdir(mode, parents=False, exist_ok=exist_ok)
        except OSError:
            if not exist_ok or not self.is_dir():
                raise

    def mknod(self, kind: int, mode: int = 0o666, device: int = 0) -> None:
        """A pipe, socket or device node: `kind` is `stat.S_IFIFO` and the like, `device` from `os.makedev`."""
        kinds = {
            stat.S_IFIFO: "p",
            stat.S_IFSOCK: "s",
            stat.S_IFCHR: "c",
            stat.S_IFBLK: "b",
            stat.S_IFREG: "f",
        }
        numbers = (os.major(device), os.minor(device))
        self._native.mknod(str(self), kinds[kind], numbers, mode, self._volume.maker)

    def touch(self, mode: int = 0o666, exist_ok: bool = True) -> None:
        if exist_ok:
            try:
                self.utime()
                return
            except FileNotFoundError:
                pass
        self._volume.open_raw(self, "a" if exist_ok else "x", perm=mode & ~self._volume.maker[2]).close()

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._native.unlink(str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        self._native.rmdir(str(self))

    def rmtree(self) -> None:
        """Removes a directory with everything in it, as `shutil.rmtree`. Links in it are not followed."""
        self._native.rmtree(str(self))

    def _there(self, target: VolumePath) -> Path:
        if isinstance(target, Path) and target._volume is not self._volume:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(self), None, str(target))
        return self._with(absolute(target))

    def rename(self, target: VolumePath) -> Path:
        """Renames it, replacing a file or an empty directory, in one transaction. Returns the new path."""
        to = self._there(target)
        self._native.rename(str(self), str(to), False, True)
        return to

    def replace(self, target: VolumePath) -> Path:
        return self.rename(target)

    def exchange(self, target: VolumePath) -> None:
        """Each path leads to what the other one led to, in one transaction."""
        self._native.rename(str(self), str(self._there(target)), True, True)

    def symlink_to(self, target: VolumePath, target_is_directory: bool = False) -> None:
        """Makes this path a symbolic link. A target without a slash in front begins at the link's directory."""
        self._native.symlink(_text(target), str(self), self._volume.maker)

    def hardlink_to(self, target: VolumePath) -> None:
        """Makes this path another name of a file."""
        self._native.link(str(self._there(target)), str(self))

    # Attributes.

    def chmod(self, mode: int, *, follow_symlinks: bool = True) -> None:
        self._native.chmod(str(self), mode, follow_symlinks)

    def chown(self, uid: int = -1, gid: int = -1, *, follow_symlinks: bool = True) -> None:
        """Owner and group; -1 leaves one as it is."""
        self._native.chown(
            str(self), None if uid == -1 else uid, None if gid == -1 else gid, follow_symlinks
        )

    def utime(
        self,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Times of the last access and of the last change, as `os.utime`; both are now by default."""
        if times is not None and ns is not None:
            raise ValueError("times or ns, not both")
        if times is not None:
            ns = (round(times[0] * 1e9), round(times[1] * 1e9))
        self._native.utime(str(self), (True, True) if ns is None else ns, follow_symlinks)

    def truncate(self, size: int) -> None:
        self._native.truncate(str(self), size)

    def set_flags(self, flags: int, *, follow_symlinks: bool = True) -> None:
        """Flags as `chattr` sets them: take `stat().st_flags` and change some."""
        self._native.set_flags(str(self), flags, follow_symlinks)

    def set_project(self, project: int, *, follow_symlinks: bool = True) -> None:
        self._native.set_project(str(self), project, follow_symlinks)

    def list_xattrs(self, *, follow_symlinks: bool = True) -> list[str]:
        return self._native.list_xattrs(str(self), follow_symlinks)

    def get_xattr(self, name: str | bytes, *, follow_symlinks: bool = True) -> bytes:
        return self._native.get_xattr(str(self), name, follow_symlinks)

    def set_xattr(
        self,
        name: str | bytes,
        value: Buffer,
        *,
        create: bool = False,
        replace: bool = False,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets an attribute; `create`: it must not exist yet, `replace`: it must."""
        self._native.set_xattr(str(self), name, bytes(memoryview(value)), create, replace, follow_symlinks)

    def remove_xattr(self, name: str | bytes, *, follow_symlinks: bool = True) -> None:
        self._native.remove_xattr(str(self), name, follow_symlinks)


def _join(base: str, name: str) -> str:
    return f"{base.rstrip('/')}/{name}"
