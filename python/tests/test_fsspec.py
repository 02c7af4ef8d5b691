"""The file system of fsspec: its own tests of file systems, and what they leave out."""

from __future__ import annotations

import errno
import functools
import io
import operator
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import uext4
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)
from uext4.fsspec import Ext4FileSystem


@pytest.fixture
def fs(image: Path) -> Iterator[Ext4FileSystem]:
    fs = Ext4FileSystem(image, read_only=False)
    yield fs
    fs.close()


class Ext4Fixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self, image: Path) -> Iterator[Ext4FileSystem]:
        fs = Ext4FileSystem(image, read_only=False)
        yield fs
        fs.close()

    @pytest.fixture
    def fs_path(self, fs: Ext4FileSystem) -> str:
        fs.mkdir("/base")
        return "/base"


class TestCopy(AbstractCopyTests, Ext4Fixtures):
    pass


class TestGet(AbstractGetTests, Ext4Fixtures):
    pass


class TestPut(AbstractPutTests, Ext4Fixtures):
    pass


class TestOpen(AbstractOpenTests, Ext4Fixtures):
    pass


class TestPipe(AbstractPipeTests, Ext4Fixtures):
    pass


def test_urls(image: Path) -> None:
    url = f"ext4://data/file.txt::file://{image}"
    with pytest.raises(OSError) as caught:
        fsspec.open(url, "w").open()
    assert caught.value.errno == errno.EROFS
    with fsspec.open(url, "w", ext4={"read_only": False}) as file:
        file.write("by a URL")
    fs, path = fsspec.core.url_to_fs(url, ext4={"read_only": False})
    assert isinstance(fs, Ext4FileSystem) and path == "/data/file.txt"
    assert fs.cat_file(path) == b"by a URL"
    assert fs is fsspec.core.url_to_fs(url, ext4={"read_only": False})[0]
    with fsspec.open(url) as file:
        assert file.read() == b"by a URL"
    fs.close()
    with pytest.raises(ValueError, match="closed"):
        fs.cat_file(path)
    assert fs is not fsspec.core.url_to_fs(url, ext4={"read_only": False})[0]
    assert fsspec.open_files(f"ext4://data/*.txt::file://{image}")[0].path == "/data/file.txt"
    for options in ({}, {"ext4": {"read_only": False}}):
        fsspec.core.url_to_fs(url, **options)[0].close()
    # The device is free.
    uext4.open(image).close()


def test_file_systems_share_a_device(image: Path) -> None:
    def begin(read_only: bool) -> Ext4FileSystem:
        return Ext4FileSystem(image, read_only=read_only, skip_instance_cache=True)

    early, writer, late = begin(True), begin(False), begin(True)
    writer.pipe("/a", b"1")
    assert early.cat("/a") == late.cat("/a") == b"1"
    assert early.volume is writer.volume is late.volume and early.volume.writable
    for change in (
        lambda: early.pipe("/b", b""),
        lambda: early.rm("/a"),
        lambda: early.rm("/a", recursive=True),
        lambda: early.mv("/a", "/b"),
        lambda: early.cp_file("/a", "/b"),
        lambda: early.touch("/a"),
        lambda: early.mkdir("/b"),
        lambda: early.makedirs("/b"),
        lambda: early.rmdir("/lost+found"),
        lambda: early.chmod("/a", 0),
        lambda: early.open("/a", "ab"),
    ):
        with pytest.raises(OSError) as caught:
            change()
        assert caught.value.errno == errno.EROFS and caught.value.filename == str(image)
    assert writer.ls("/", detail=False) == ["/a", "/lost+found"]
    writer.close()
    assert not early.volume.writable and late.cat("/a") == b"1"
    with early.open("/a") as file:
        with pytest.raises(OSError, match="files of it are open"):
            begin(False)
        assert file.read() == b"1"
    second = begin(False)
    second.pipe("/a", b"2")
    early.close()
    late.close()
    assert second.cat("/a") == b"2"
    second.close()
    uext4.open(image).close()


def test_what_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="https"):
        fsspec.filesystem("ext4", fo="a.img", target_protocol="https")
    with pytest.raises(ValueError, match="fo="):
        fsspec.filesystem("ext4")
    with pytest.raises(FileNotFoundError):
        fsspec.filesystem("ext4", fo=tmp_path / "none.img")


def test_the_entry_point(image: Path) -> None:
    program = f"""
import fsspec
fs = fsspec.filesystem("ext4", fo={str(image)!r}, read_only=False)
fs.pipe("/a/b/c", b"piped")
print(fs.ls("/a/b", detail=False))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "['/a/b/c']\n"
    with uext4.open(image, read_only=True) as volume:
        assert volume.info().recovery == "clean"


def test_facts(fs: Ext4FileSystem) -> None:
    fs.pipe("/d/file", b"12345")
    fs.volume.path("d/link").symlink_to("file")
    fs.volume.path("d/broken").symlink_to("none")
    facts = {one["name"]: one for one in fs.ls("/d")}
    assert (facts["/d/file"]["type"], facts["/d/file"]["size"], facts["/d/file"]["islink"]) == ("file", 5, False)
    assert (facts["/d/link"]["type"], facts["/d/link"]["size"]) == ("file", 5)
    assert facts["/d/link"]["destination"] == "file"
    assert (facts["/d/broken"]["type"], facts["/d/broken"]["islink"]) == ("other", True)
    assert facts["/d/file"] == fs.info("d/file") == fs.ls("ext4://d/file")[0]
    assert fs.info("/")["type"] == "directory" and fs.info("/")["name"] == "/"
    assert fs.find("/d") == ["/d/broken", "/d/file", "/d/link"] and fs.du("/d/file") == 5
    assert fs.glob("/d/f*") == ["/d/file"] and fs.isdir("/d") and not fs.exists("/none")
    assert fs.modified("/d/file") >= fs.created("/d/file")
    assert [here for here, _, _ in fs.walk("/d")] == ["/d"]
    with pytest.raises(FileNotFoundError):
        fs.ls("/none")
    assert fs.cat_ranges(["/d/file"] * 2, [0, 2], [2, 4]) == [b"12", b"34"]
    assert fs.tail("/d/file", 2) == b"45" and fs.head("/d/file", 2) == b"12"


def test_changes(fs: Ext4FileSystem) -> None:
    fs.pipe({"/a/one": b"1", "/a/two": b"2"})
    fs.mv("/a", "/moved", recursive=True)
    assert fs.find("/moved") == ["/moved/one", "/moved/two"] and not fs.exists("/a")
    fs.mv("/moved/one", "/elsewhere/one")
    fs.cp("/moved", "/copied", recursive=True)
    assert fs.find("/copied") == ["/copied/two"]
    fs.rm("/moved/*")
    assert fs.ls("/moved") == []
    fs.rmdir("/moved")
    fs.rm("/copied", recursive=True)
    for recursive in (False, True):
        with pytest.raises(FileNotFoundError):
            fs.rm("/copied", recursive=recursive)
    fs.pipe("/twice/below/file", b"")
    fs.rm("/twice/**", recursive=True)
    assert not fs.exists("/twice")
    with pytest.raises(OSError):
        fs.rm("/elsewhere")
    with pytest.raises(FileExistsError):
        fs.mkdir("/elsewhere")
    fs.makedirs("/elsewhere", exist_ok=True)
    with fs.open("/elsewhere/one", "ab") as file:
        file.write(b"23")
    with fs.open("/elsewhere/one", "r+b") as file:
        file.seek(1)
        file.write(b"X")
    assert fs.cat("/elsewhere/one") == b"1X3"
    fs.touch("/elsewhere/one", truncate=False)
    assert fs.size("/elsewhere/one") == 3
    fs.touch("/elsewhere/one")
    assert fs.size("/elsewhere/one") == 0
    fs.chmod("/elsewhere/one", 0o600)
    assert fs.info("/elsewhere/one")["mode"] & 0o7777 == 0o600


def test_a_file_is_not_copied_onto_itself(fs: Ext4FileSystem) -> None:
    fs.pipe("/file", b"precious")
    fs.volume.path("/link").symlink_to("file")
    fs.volume.path("/name").hardlink_to("/file")
    for source, target in [("/file", "/file"), ("/link", "/file"), ("/file", "/link"), ("/name", "/file")]:
        with pytest.raises(OSError) as caught:
            fs.cp(source, target)
        assert caught.value.errno == errno.EINVAL
        assert fs.cat("/file") == b"precious"
    fs.pipe("/other", b"other")
    fs.cp("/other", "/link")
    assert fs.cat("/file") == b"other"


def test_links_are_not_entered(fs: Ext4FileSystem) -> None:
    fs.pipe({"/tree/a/file": b"1", "/kept/file": b"precious"})
    fs.volume.path("/tree/out").symlink_to("/kept")
    # Two ways around in it: each further level would double the paths.
    fs.volume.path("/tree/b").symlink_to(".")
    fs.volume.path("/tree/c").symlink_to(".")
    assert fs.find("/tree") == ["/tree/a/file"]
    assert fs.find("/tree/out") == ["/tree/out/file"]
    assert [*fs.walk("/tree")] == [("/tree", ["a", "b", "c", "out"], []), ("/tree/a", [], ["file"])]
    assert [here for here, _, _ in fs.walk("/tree", topdown=False)] == ["/tree/a", "/tree"]
    assert [here for here, _, _ in fs.walk("/tree", maxdepth=1)] == ["/tree"]
    for _, directories, _ in fs.walk("/tree"):
        directories.clear()
    assert [*fs.walk("/none")] == []
    with pytest.raises(FileNotFoundError):
        [*fs.walk("/none", on_error="raise")]
    fs.rm("/tree", recursive=True, maxdepth=3)
    assert not fs.exists("/tree") and fs.cat("/kept/file") == b"precious"


def test_a_seek_and_a_read_of_one_thread_belong_together(fs: Ext4FileSystem) -> None:
    """As long as it does not let the interpreter's lock go in between: here no bytecode runs."""
    words = 1 << 17
    data = b"".join(number.to_bytes(8, "little") for number in range(words))
    fs.pipe("/numbers", data)
    call = operator.methodcaller("__call__")
    wrong = []

    def work(file: Any, seed: int) -> None:
        choice = random.Random(seed)
        for _ in range(1000):
            first, count = choice.randrange(words), choice.choice([1, 500, 20_000])
            steps = [functools.partial(file.seek, 8 * first), functools.partial(file.read, 8 * count)]
            if list(map(call, steps))[1] != data[8 * first : 8 * (first + count)]:
                wrong.append(first)

    with fs.open("/numbers") as file:
        threads = [threading.Thread(target=work, args=(file, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_threads_share_what_they_read(fs: Ext4FileSystem) -> None:
    lines = [b"%d %s\n" % (number, b"x" * (number % 700)) for number in range(5000)]
    fs.pipe("/lines", b"".join(lines))
    for read in (lambda file: file.readline(), lambda file: file.read(1000)):
        found: list[bytes] = []
        with fs.open("/lines") as file:

            def work(read: Any = read, file: Any = file, found: list[bytes] = found) -> None:
                while part := read(file):
                    found.append(part)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sum(map(len, found)) == sum(map(len, lines))
        assert len({*found}) == len(found)
    assert sorted(fs.open("/lines")) == sorted(lines)


def test_a_file_for_reading_is_one_of_io(fs: Ext4FileSystem, tmp_path: Path) -> None:
    """What it answers is what `open()` answers."""
    data = b"\n".join(bytes([65 + number % 26]) * (number * 37 % 900) for number in range(400))
    fs.pipe("/file", data)
    (tmp_path / "file").write_bytes(data)
    choice = random.Random(1)
    with fs.open("/file") as ours, open(tmp_path / "file", "rb", 64 << 10) as theirs:
        assert isinstance(ours, io.BufferedIOBase) and (ours.mode, ours.name) == ("rb", "/file")
        assert ours.readable() and ours.seekable() and not ours.writable() and ours.size == len(data)
        for _ in range(3000):
            size = choice.choice([-1, 0, 1, 7, 300, 5000, 70_000])
            how = choice.choice(["read"] * 3 + ["readline"] * 3 + ["readinto", "seek", "back", "end", "next", "peek"])
            if how in ("read", "readline"):
                assert getattr(ours, how)(size) == getattr(theirs, how)(size)
            elif how == "readinto":
                mine, other = bytearray(max(0, size)), bytearray(max(0, size))
                assert (ours.readinto(mine), mine) == (theirs.readinto(other), other)
            elif how == "next":
                assert next(ours, None) == next(theirs, None)
            elif how == "peek":
                assert bool(ours.peek(10)) == bool(theirs.peek(10)) and ours.peek()[:1] == theirs.peek()[:1]
            else:
                pos = choice.randrange(len(data) + 100)
                to = {"seek": (pos, 0), "back": (-min(pos, theirs.tell()), 1), "end": (-min(pos, len(data)), 2)}[how]
                assert ours.seek(*to) == theirs.seek(*to)
            assert ours.tell() == theirs.tell()
        assert ours.seek(0, os.SEEK_HOLE) == len(data) and ours.seek(5, os.SEEK_DATA) == 5
        ours.seek(0)
        assert ours.readlines() == data.splitlines(keepends=True)
        for wrong in ((-1, 0), (-len(data) - 1, 2)):
            with pytest.raises(OSError):
                ours.seek(*wrong)
        with pytest.raises(ValueError):
            ours.seek(0, 9)
        for refused in (ours.fileno, ours.detach, lambda: ours.write(b""), ours.truncate):
            with pytest.raises(io.UnsupportedOperation):
                refused()
    calls = (ours.read, ours.tell, ours.readline, ours.peek)
    for call in (*calls, lambda: ours.seek(0), lambda: ours.readinto(bytearray(1))):
        with pytest.raises(ValueError):
            call()
    assert io.TextIOWrapper(fs.open("/file"), newline="").read().encode() == data
    # Nobody keeps these while they read.
    assert fs.open("/file").read() == data and fs.open("/file").readline() == data.splitlines(keepends=True)[0]


def test_a_line_that_no_memory_holds_is_an_error(fs: Ext4FileSystem, image: Path) -> None:
    fs.touch("/holes")
    fs.volume.path("/holes").truncate(1 << 40)
    fs.close()
    program = """
import errno, resource, sys
from uext4.fsspec import Ext4FileSystem
file = Ext4FileSystem(sys.argv[1]).open("/holes")
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    file.readline()
except OSError as error:
    assert error.errno == errno.ENOMEM and error.filename == "/holes"
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program, str(image)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_who_goes_back_sees_what_was_written(fs: Ext4FileSystem) -> None:
    fs.pipe("/file", b"old" * 1000)
    with fs.open("/file") as file:
        assert file.read(3) == file.read(3) == b"old"
        with fs.open("/file", "r+b") as writer:
            writer.write(b"new" * 1000)
        file.seek(0)
        assert file.read(3) == b"new"
        assert file.read() == b"new" * 999 and file.read() == b""
        with fs.open("/file", "ab") as writer:
            writer.write(b"more")
        assert file.read(100) == b"more"


def test_parts_of_files_are_slices(fs: Ext4FileSystem) -> None:
    data = bytes(range(10))
    fs.pipe("/file", data)
    for start in (None, 0, 3, 10, 20, -3, -20):
        for end in (None, 0, 2, 3, 10, 20, -1, -20):
            assert fs.cat_file("/file", start, end) == data[start:end], (start, end)
    assert fs.cat_ranges(["/file"] * 2, [-3, 5], [None, 4]) == [data[-3:], b""]
    assert fs.read_block("/file", 8, 100) == data[8:]


def test_a_transaction_is_all_or_nothing(fs: Ext4FileSystem) -> None:
    fs.pipe("/kept", b"old")
    with pytest.raises(RuntimeError), fs.transaction:
        with fs.open("/kept", "wb") as file:
            file.write(b"new")
        with fs.open("/made", "wb") as file:
            file.write(b"new")
        raise RuntimeError
    assert fs.cat("/kept") == b"old" and fs.ls("/", detail=False) == ["/kept", "/lost+found"]
    with fs.transaction:
        with fs.open("/kept", "wb") as file:
            file.write(b"new")
        assert fs.cat("/kept") == b"old"
    assert fs.cat("/kept") == b"new"


def test_a_file_is_durable_when_it_is_closed(image: Path) -> None:
    program = f"""
import os
from uext4.fsspec import Ext4FileSystem
fs = Ext4FileSystem({str(image)!r}, read_only=False)
with fs.open("/file", "wb") as file:
    file.write(b"durable" * 100000)
os._exit(3)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 3
    with uext4.open(image) as volume:
        assert volume.path("file").read_bytes() == b"durable" * 100000
