"""Paths, beside those of pathlib on the host."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
import uext4

Trees = tuple[uext4.Path, pathlib.Path]


@pytest.fixture
def trees(volume: uext4.Volume, tmp_path: Path) -> Trees:
    """The same tree in a volume and on the host."""
    host = tmp_path / "host"
    host.mkdir()
    for root in (volume.root, host):
        (root / "d" / "e" / "deep").mkdir(parents=True)
        (root / "d" / "one.txt").write_text("1")
        (root / "d" / "e" / "two.txt").write_text("22")
        (root / "d" / "e" / ".hidden.txt").write_text("333")
        (root / "d" / "e" / "deep" / "three.bin").write_bytes(b"\0" * 3)
        (root / "d" / "link").symlink_to("e")
        (root / "d" / "broken").symlink_to("nowhere")
        (root / "d" / "loop").symlink_to("loop")
        (root / "d" / "a[b]c").write_text("")
    return volume.root / "d", host / "d"


def same(ours: object, theirs: object) -> None:
    assert ours == theirs


PATTERNS = [
    "*",
    "*.txt",
    "**/*.txt",
    "**",
    "e/*",
    "*/*.txt",
    "e/two.txt",
    "e/none",
    "link/*.txt",
    "**/deep/*",
    "?ne.*",
    "a[[]b]c",
    "[!o]*.txt",
    "**/e/**/*.bin",
    "one.txt/*",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_glob(trees: Trees, pattern: str) -> None:
    ours, theirs = trees
    found = sorted(str(path.relative_to(ours)) for path in ours.glob(pattern))
    expected = {str(path.relative_to(theirs)) for path in theirs.glob(pattern)}
    if pattern == "**":
        # As since Python 3.13: files, too.
        expected = {str(path.relative_to(theirs)) for path in [theirs, *theirs.rglob("*")]}
    assert found == sorted(expected)


def test_rglob_and_wrong_patterns(trees: Trees) -> None:
    ours, theirs = trees
    for pattern in ("*.txt", "e/*", "*"):
        found = sorted(str(path.relative_to(ours)) for path in ours.rglob(pattern))
        assert found == sorted({str(path.relative_to(theirs)) for path in theirs.rglob(pattern)})
    with pytest.raises(ValueError):
        list(ours.glob(""))
    with pytest.raises(NotImplementedError):
        list(ours.glob("/d"))


@pytest.mark.parametrize("name", ["", "one.txt", "e", "link", "broken", "loop", "none", "one.txt/x"])
def test_what_is_there(trees: Trees, name: str) -> None:
    ours, theirs = (root / name for root in trees)
    for question in ("exists", "is_dir", "is_file", "is_symlink", "is_fifo", "is_block_device"):
        same(getattr(ours, question)(), getattr(theirs, question)())

    def outcome(path: uext4.Path | pathlib.Path, call: str) -> object:
        try:
            found = getattr(path, call)()
            # The host may store directories otherwise.
            return stat.S_IFMT(found.st_mode), stat.S_ISDIR(found.st_mode) or found.st_size
        except OSError as error:
            return type(error), error.errno

    same(outcome(ours, "stat"), outcome(theirs, "stat"))
    same(outcome(ours, "lstat"), outcome(theirs, "lstat"))


def test_errors_have_their_classes_and_names(trees: Trees) -> None:
    here = trees[0]
    cases: list[tuple[Callable[[], object], type[OSError], str, str | None]] = [
        (lambda: (here / "none").read_bytes(), FileNotFoundError, "/d/none", None),
        (lambda: here.read_bytes(), IsADirectoryError, "/d", None),
        (lambda: list((here / "one.txt").iterdir()), NotADirectoryError, "/d/one.txt", None),
        (lambda: (here / "one.txt").mkdir(), FileExistsError, "/d/one.txt", None),
        (lambda: (here / "none").rename(here / "x"), FileNotFoundError, "/d/none", "/d/x"),
        (lambda: (here / "one.txt").hardlink_to(here / "e" / "two.txt"), FileExistsError, "/d/e/two.txt", "/d/one.txt"),
        (lambda: (here / "one.txt").open("xb"), FileExistsError, "/d/one.txt", None),
    ]
    for call, kind, name, second in cases:
        with pytest.raises(kind) as caught:
            call()
        assert (caught.value.filename, caught.value.filename2) == (name, second)
        assert caught.value.errno and caught.value.strerror
    codes: list[tuple[Callable[[], object], int]] = [
        (lambda: here.rmdir(), errno.ENOTEMPTY),
        (lambda: (here / "loop").read_bytes(), errno.ELOOP),
        (lambda: (here / ("n" * 256)).write_bytes(b""), errno.ENAMETOOLONG),
        (lambda: (here / "one.txt").get_xattr("user.none"), errno.ENODATA),
        (lambda: (here / "one.txt").readlink(), errno.EINVAL),
    ]
    for call, code in codes:
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == code


def test_walks(trees: Trees) -> None:
    ours, theirs = trees

    def listed(tree: uext4.Path | pathlib.Path, **how: bool) -> list[tuple[str, list[str], list[str]]]:
        if isinstance(tree, uext4.Path):
            steps = [(str(here.relative_to(tree)), dirs, files) for here, dirs, files in tree.walk(**how)]
        else:
            follow = how.get("follow_symlinks", False)
            walk = os.walk(tree, topdown=how.get("top_down", True), followlinks=follow)
            # `os.walk` counts links to directories among them, the walk of pathlib does not unless it follows.
            steps = []
            for here, dirs, files in walk:
                links = [] if follow else [name for name in dirs if os.path.islink(os.path.join(here, name))]
                place = os.path.relpath(here, tree)
                steps.append((place, [name for name in dirs if name not in links], files + links))
        return [(here, sorted(dirs), sorted(files)) for here, dirs, files in steps]

    assert sorted(listed(ours)) == sorted(listed(theirs))
    down, up = listed(ours), listed(ours, top_down=False)
    assert sorted(up) == sorted(down)
    order = [here for here, _, _ in up]
    assert order.index("e/deep") < order.index("e") < order.index(".")
    assert sorted(listed(ours, follow_symlinks=True)) == sorted(listed(theirs, follow_symlinks=True))
    for here, directories, _ in ours.walk():
        directories[:] = [name for name in directories if name != "e"]
        assert here.name != "e"
    failures: list[OSError] = []
    assert list((ours / "one.txt").walk(on_error=failures.append)) == []
    assert [type(failure) for failure in failures] == [NotADirectoryError]


def test_the_quick_walk(trees: Trees) -> None:
    ours, theirs = trees
    volume = ours.volume
    expected = {str(path.relative_to(theirs)): path.lstat() for path in [theirs, *theirs.rglob("*")]}
    found = {str(PurePosixPath(entry.path).relative_to("/d")): entry for entry in volume.walk("/d")}
    assert found.keys() == expected.keys()
    for name, entry in found.items():
        assert stat.S_IFMT(entry.stat().st_mode) == stat.S_IFMT(expected[name].st_mode) == entry.type_bits
        assert entry.is_dir() == stat.S_ISDIR(expected[name].st_mode)
        assert entry.stat() == volume.path(entry.path).lstat()
        assert entry.inode() == entry.stat().st_ino
        assert entry.name == (PurePosixPath(name).name or "d")
    assert {entry.path for entry in volume.walk("/d", max_depth=1)} == {"/d", *(f"/d/{n.name}" for n in ours.iterdir())}
    assert next(volume.walk("/")).path == "/"
    assert {entry.path for entry in volume.walk("d//")} == {f"/d/{name}".removesuffix("/.") for name in found}
    with pytest.raises(ValueError, match="stat=False"):
        next(volume.walk("/d", stat=False)).stat()
    with pytest.raises(FileNotFoundError):
        volume.walk("/none")


def test_a_volume_without_types_in_directories(image_of: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "source" / "directory").mkdir(parents=True)
    (tmp_path / "source" / "file").write_bytes(b"")
    with uext4.open(image_of(tmp_path / "source", "-O", "^filetype"), read_only=True) as volume:
        kinds = {entry.name: (entry.is_dir(), entry.is_file()) for entry in volume.walk("/", stat=False)}
    assert (kinds["directory"], kinds["file"]) == ((True, False), (False, True))


@pytest.mark.parametrize(
    "name", ["", "e", "link", "link/two.txt", "none", "none/deeper", "broken", "broken/x", "e/../one.txt", "one.txt/x"]
)
def test_resolve(trees: Trees, name: str) -> None:
    ours, theirs = (root / name for root in trees)
    expected = theirs.resolve().relative_to(trees[1].resolve())
    assert ours.resolve().relative_to(trees[0]) == PurePosixPath(expected)
    if ours.exists():
        assert ours.resolve(strict=True) == ours.resolve()
    else:
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            ours.resolve(strict=True)


def test_resolving_a_loop(trees: Trees) -> None:
    with pytest.raises(OSError) as caught:
        (trees[0] / "loop").resolve()
    assert caught.value.errno == errno.ELOOP


def test_names(volume: uext4.Volume) -> None:
    path = volume.path("a/b.tar.gz")
    pure = PurePosixPath("/a/b.tar.gz")
    for name in ("name", "stem", "suffix", "suffixes", "parts"):
        assert getattr(path, name) == getattr(pure, name)
    assert str(path.parent) == "/a" and [str(one) for one in path.parents] == ["/a", "/"]
    assert volume.root.parent == volume.root
    assert path == volume.path("/a", "b.tar.gz") == volume.path("//a//./b.tar.gz") == volume.root / b"a" / "b.tar.gz"
    assert str(path.with_name("c")) == "/a/c" and str(path.with_suffix(".xz")) == "/a/b.tar.xz"
    assert path.relative_to("/a") == PurePosixPath("b.tar.gz") and path.is_relative_to(volume.path("a"))
    assert len({path, volume.path("a/b.tar.gz")}) == 1
    assert sorted([volume.path("b"), volume.path("a")])[0] == volume.path("a")
    assert path.match("*.gz") and path.as_posix() == "/a/b.tar.gz"
    assert not hasattr(path, "__fspath__")
    with pytest.raises(TypeError):
        open(path)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        volume.path(3)  # type: ignore[arg-type]


def test_names_that_are_not_utf_8(volume: uext4.Volume) -> None:
    raw = b"\xff\xfe name"
    path = volume.root / raw
    path.write_bytes(b"odd")
    assert [os.fsencode(found.name) for found in volume.root.glob("*name")] == [raw]
    assert bytes(path) == b"/" + raw
    assert raw in [os.fsencode(entry.name) for entry in volume.walk()]
    assert (volume.root / os.fsdecode(raw)).read_bytes() == b"odd"
    with pytest.raises(FileExistsError) as caught:
        path.open("x")
    assert os.fsencode(caught.value.filename) == b"/" + raw
    path.rename(volume.root / "plain")
    link = volume.root / "link"
    link.symlink_to(raw)
    assert os.fsencode(str(link.readlink())) == raw


def test_changes_of_names(volume: uext4.Volume) -> None:
    root = volume.root
    (root / "a" / "b" / "c").mkdir(parents=True)
    (root / "a" / "b").mkdir(exist_ok=True)
    with pytest.raises(FileExistsError):
        (root / "a").mkdir()
    with pytest.raises(FileNotFoundError):
        (root / "x" / "y").mkdir()
    file = root / "a" / "file"
    file.write_bytes(b"1")
    with pytest.raises(FileExistsError):
        file.mkdir(exist_ok=True)
    assert file.rename("a/moved") == root / "a" / "moved"
    (root / "a" / "other").write_bytes(b"2")
    (root / "a" / "moved").exchange("/a/other")
    assert (root / "a" / "moved").read_bytes() == b"2"
    (root / "a" / "other").replace(root / "a" / "moved")
    assert (root / "a" / "moved").read_bytes() == b"1" and not (root / "a" / "other").exists()
    (root / "hard").hardlink_to("a/moved")
    assert (root / "hard").samefile("a/moved") and (root / "hard").stat().st_nlink == 2
    (root / "soft").symlink_to(root / "a" / "moved")
    assert str((root / "soft").readlink()) == "/a/moved" and (root / "soft").read_bytes() == b"1"
    (root / "a" / "near").symlink_to("b/../moved")
    assert str((root / "a" / "near").resolve()) == "/a/moved"
    (root / "hard").unlink()
    (root / "hard").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (root / "hard").unlink()
    (root / "a" / "b" / "c").rmdir()
    (root / "a").rmtree()
    assert sorted(path.name for path in root.iterdir()) == ["lost+found", "soft"]
    (root / "pipe").mknod(stat.S_IFIFO)
    (root / "null").mknod(stat.S_IFCHR, 0o600, os.makedev(1, 3))
    assert (root / "pipe").is_fifo() and (root / "null").stat().st_rdev == os.makedev(1, 3)


def test_names_of_another_volume_are_refused(volume: uext4.Volume, tmp_path: Path) -> None:
    uext4.mkfs(tmp_path / "second.img", 8 << 20)
    with uext4.open(tmp_path / "second.img") as second:
        (volume.root / "a").write_bytes(b"")
        with pytest.raises(OSError) as caught:
            (volume.root / "a").rename(second.root / "a")
        assert caught.value.errno == errno.EXDEV
        assert volume.root.stat().st_dev != second.root.stat().st_dev


def test_attributes(volume: uext4.Volume) -> None:
    path = volume.root / "a"
    path.touch()
    found = path.stat()
    assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(found.st_mode) == 0o666 & ~mask
    path.chmod(0o4711)
    path.chown(7, 8)
    assert stat.filemode(path.stat().st_mode) == "-rwx--x--x"
    path.chown(gid=9)
    assert (path.stat().st_uid, path.stat().st_gid) == (7, 9)
    path.utime(ns=(1_000_000_001, 5_000_000_000_000_000_002))
    found = path.stat()
    assert (found.st_atime_ns, found.st_mtime_ns) == (1_000_000_001, 5_000_000_000_000_000_002)
    path.utime((1.5, -1.5))
    assert (path.stat().st_atime, path.stat().st_mtime) == (1.5, -1.5)
    before = found.st_ctime_ns
    path.touch()
    assert path.stat().st_mtime_ns > before - 10**10 and path.stat().st_ctime_ns >= before
    assert found.st_birthtime_ns is not None and found.st_birthtime_ns <= before
    path.truncate(1 << 20)
    assert (path.stat().st_size, path.stat().st_blocks, path.stat().st_blksize) == (1 << 20, 0, volume.block_size)
    immutable = 0x10
    path.set_flags(path.stat().st_flags | immutable)
    with pytest.raises(PermissionError):
        path.write_bytes(b"")
    path.set_flags(path.stat().st_flags & ~immutable)
    with pytest.raises(FileExistsError):
        path.touch(exist_ok=False)
    (volume.root / "mode").touch(0o600)
    assert stat.S_IMODE((volume.root / "mode").stat().st_mode) == 0o600


def test_extended_attributes(volume: uext4.Volume) -> None:
    path = volume.root / "a"
    path.touch()
    path.set_xattr("user.one", b"1")
    path.set_xattr(b"user.two", bytearray(b"\0\xff"))
    assert sorted(path.list_xattrs()) == ["user.one", "user.two"]
    assert path.get_xattr("user.two") == b"\0\xff"
    with pytest.raises(TypeError):
        path.set_xattr("user.two", 5)  # type: ignore[arg-type]
    with pytest.raises(FileExistsError):
        path.set_xattr("user.one", b"", create=True)
    with pytest.raises(OSError) as caught:
        path.set_xattr("user.three", b"", replace=True)
    assert caught.value.errno == errno.ENODATA
    path.remove_xattr("user.one")
    assert path.list_xattrs() == ["user.two"]


def test_damage_is_an_error_of_its_own(image_of: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "source" / "directory").mkdir(parents=True)
    (tmp_path / "source" / "directory" / "file").write_bytes(b"x")
    (tmp_path / "source" / "whole").write_bytes(b"y")
    image = image_of(tmp_path / "source")
    with uext4.open(image, read_only=True) as volume:
        number = volume.path("directory").stat().st_ino
    debugfs = shutil.which("debugfs", path="/sbin:/usr/sbin:" + os.environ["PATH"])
    if debugfs is None:
        pytest.skip("needs debugfs")
    assert os.spawnl(os.P_WAIT, debugfs, debugfs, "-w", "-R", "set_inode_field directory checksum 1", str(image)) == 0
    with uext4.open(image, read_only=True) as volume:
        with pytest.raises(uext4.CorruptError) as caught:
            volume.path("directory/file").read_bytes()
        error = caught.value
        assert isinstance(error, OSError) and error.errno == errno.EUCLEAN
        assert (error.filename, error.inode) == ("/directory/file", number)
        assert error.block is not None
        # A walk goes on behind it.
        walk, seen, failures = volume.walk("/"), [], 0
        while True:
            try:
                seen.append(next(walk).name)
            except StopIteration:
                break
            except uext4.CorruptError:
                failures += 1
        assert "whole" in seen and failures == 1
    report = uext4.check(image)
    assert not report.clean
    assert number in [finding.inode for finding in report.findings]
