"""The file system of fsspec: its own tests of file systems, and what they leave out."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
    assert fs.ls("/twice") == []
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
