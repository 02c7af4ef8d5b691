"""Files: as those of io, and with positions."""

from __future__ import annotations

import ctypes
import errno
import gc
import gzip
import io
import os
import threading
import time
import zipfile
from array import array
from pathlib import Path

import pytest
import uext4

TEXT = "first line\nsecond, with umlauts äöü\r\nthird\n"


def opened(path: uext4.Path, mode: str = "r+") -> uext4.File:
    return path.volume.open_raw(path, mode)


@pytest.mark.parametrize("mode", ["r", "r+", "w", "w+", "a", "a+", "x", "x+"])
@pytest.mark.parametrize("exists", [True, False])
def test_modes_do_what_those_of_the_host_do(volume: uext4.Volume, tmp_path: Path, mode: str, exists: bool) -> None:
    def outcome(path: uext4.Path | Path) -> list[object]:
        if exists:
            path.write_bytes(b"0123456789")
        seen: list[object] = []
        try:
            file = path.open(mode + "b", buffering=0)
        except OSError as error:
            return [type(error)]
        with file:
            seen += [file.mode, file.readable(), file.writable(), file.seekable(), file.tell()]
            for step in (
                lambda: file.write(b"AB"),
                lambda: file.seek(1),
                lambda: file.read(3),
                lambda: file.write(b"CD"),
                lambda: file.tell(),
                lambda: file.seek(-1, os.SEEK_END),
                lambda: file.read(),
                lambda: file.seek(0),
                lambda: file.readall(),
                lambda: file.seek(-1),
                lambda: file.seek(3, os.SEEK_CUR),
                lambda: file.truncate(4) if mode[0] != "a" else None,
            ):
                try:
                    seen.append(step())
                except OSError:
                    seen.append("refused")
        return [*seen, path.read_bytes()]

    assert outcome(volume.root / "file") == outcome(tmp_path / "file")


@pytest.mark.parametrize("mode", ["", "rw", "rbt", "z", "rr", "+", "b"])
def test_wrong_modes(volume: uext4.Volume, mode: str) -> None:
    with pytest.raises(ValueError):
        volume.open("/file", mode)


def test_wrong_combinations(volume: uext4.Volume) -> None:
    path = volume.root / "file"
    path.touch()
    with pytest.raises(ValueError):
        path.open("r", buffering=0)
    with pytest.raises(ValueError):
        path.open("rb", encoding="utf-8")
    with pytest.raises(LookupError):
        path.open("r", encoding="no-such")
    with path.open("rb", 0) as file:
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
        with pytest.raises(OSError) as caught:
            file.pwrite(b"x", 0)  # type: ignore[attr-defined]
        assert caught.value.errno == errno.EBADF
        with pytest.raises(ValueError):
            file.seek(0, 9)


def test_text(volume: uext4.Volume, tmp_path: Path) -> None:
    for newline in (None, "", "\n", "\r\n"):
        for encoding in ("utf-8", "utf-16"):
            ours, theirs = volume.root / "text", tmp_path / "text"
            for path in (ours, theirs):
                path.write_text(TEXT, encoding=encoding, newline=newline)
            assert ours.read_bytes() == theirs.read_bytes()
            with ours.open(encoding=encoding, newline=newline) as mine, theirs.open(
                encoding=encoding, newline=newline
            ) as its:
                assert list(mine) == list(its)
    with pytest.raises(UnicodeDecodeError):
        (volume.root / "text").read_text("ascii")
    with pytest.raises(TypeError):
        (volume.root / "text").write_text(b"x")  # type: ignore[arg-type]


def test_buffered_wrappers(volume: uext4.Volume) -> None:
    path = volume.root / "file"
    with path.open("wb") as file:
        assert isinstance(file, io.BufferedWriter)
        for number in range(1000):
            file.write(number.to_bytes(4, "little"))
    with path.open("rb", buffering=100) as file:
        assert isinstance(file, io.BufferedReader)
        file.seek(4 * 500)
        assert int.from_bytes(file.read(4), "little") == 500
        assert len(file.read()) == 4 * 499
        assert file.peek() == b"" and file.read1() == b""
    with path.open("r+b") as file:
        assert isinstance(file, io.BufferedRandom)
        file.seek(8)
        file.write(b"ABCD")
        file.seek(4)
        assert file.read(8) == (1).to_bytes(4, "little") + b"ABCD"
    with gzip.open(path.with_suffix(".gz").open("wb"), "wb") as packed:
        packed.write(b"z" * 100_000)
    with gzip.open(path.with_suffix(".gz").open("rb")) as packed:
        assert packed.read() == b"z" * 100_000
    with path.with_suffix(".zip").open("w+b") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("inside", "contents")
    with path.with_suffix(".zip").open("rb") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("inside") == b"contents" and archive.testzip() is None


def test_positions(volume: uext4.Volume) -> None:
    with opened(volume.root / "file", "w+") as file:
        assert file.pwrite(b"0123456789", 100) == 10
        assert file.size == 110 and file.tell() == 0
        assert file.pread(5, 103) == b"34567"
        assert file.pread(100, 108) == b"89" and file.pread(1, 110) == b"" and file.pread(1, 2**40) == b""
        assert file.pread(2**62, 105) == b"56789"
        memory = bytearray(b"." * 8)
        assert file.preadinto(memory, 106) == 4
        assert memory == b"6789...."
        assert file.preadinto(memoryview(memory)[2:6], 100) == 4
        assert memory == b"670123.."
        assert file.pwrite(memoryview(b"abcdef")[2:4], 0, dsync=True) == 2
        assert file.pwrite(b"", 0) == 0 and file.preadinto(bytearray(), 0) == 0
        numbers = array("d", [0.0] * 3)
        file.pwrite(array("d", [1.5, 2.5, 3.5]), 200)
        assert file.preadinto(numbers, 200) == 24 and list(numbers) == [1.5, 2.5, 3.5]
        # What has no dimensions.
        number = ctypes.c_uint32(0x01020304)
        assert file.pwrite(number, 300) == 4
        found = ctypes.c_uint32()
        assert file.preadinto(found, 300) == 4 and found.value == number.value
        for wrong in (b"read-only", memoryview(bytearray(8))[::2]):
            with pytest.raises(BufferError):
                file.preadinto(wrong, 0)
        with pytest.raises(TypeError):
            file.preadinto("text", 0)  # type: ignore[arg-type]
        with pytest.raises((OverflowError, OSError)):
            file.pread(1, -1)
        with pytest.raises(OSError):
            file.pwrite(b"x", 2**63)


def test_memory_of_a_request_is_pinned(volume: uext4.Volume) -> None:
    memory = bytearray(1 << 20)
    stop = threading.Event()
    resized = 0
    with opened(volume.root / "file", "w+") as file:
        file.pwrite(memory, 0)

        def read() -> None:
            while not stop.is_set():
                file.preadinto(memory, 0)

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        refused = 0
        end = time.monotonic() + 20
        while not refused and time.monotonic() < end:
            try:
                memory.append(0)
                memory.pop()
                resized += 1
            except BufferError:
                refused += 1
        stop.set()
        thread.join()
    assert refused


def test_a_file_that_is_made_shorter_meanwhile(volume: uext4.Volume) -> None:
    data = b"\1" * 65536
    ended = threading.Event()
    with volume.open_raw("/short", "w+") as file:
        file.write(data)

        def change() -> None:
            while not ended.is_set():
                file.truncate(0)
                file.pwrite(data, 0)

        thread = threading.Thread(target=change)
        thread.start()
        try:
            left = {file.pread(65536, 0).strip(b"\1") for _ in range(5000)}
        finally:
            ended.set()
            thread.join()
    # What is there is there, and behind its end is nothing.
    assert left == {b""}


def test_the_interpreter_runs_during_io(volume: uext4.Volume) -> None:
    """A thread that only counts goes on while another one syncs, which takes the device's time."""
    counted = 0
    stop = threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1

    with opened(volume.root / "file", "w+") as file:
        data = bytes(16 << 20)
        file.pwrite(data, 0)
        thread = threading.Thread(target=count, daemon=True)
        # A call that kept the interpreter's lock would let the thread run only between two calls: so make one call,
        # and no switch before it is over.
        thread.start()
        time.sleep(0.05)
        before = counted
        file.pwrite(data, 0, dsync=True)
        during = counted - before
        stop.set()
        thread.join()
    assert during > 100


def test_appends_of_threads_are_not_mixed(volume: uext4.Volume) -> None:
    path = volume.root / "log"
    line = 1000

    def append(letter: bytes) -> None:
        with path.open("ab", buffering=0) as file:
            for _ in range(20):
                assert file.write(letter * line) == line

    threads = [threading.Thread(target=append, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    contents = path.read_bytes()
    assert len(contents) == 60 * line


def test_blocks_and_maps(volume: uext4.Volume) -> None:
    with opened(volume.root / "file", "w+") as file:
        file.fallocate(0, 64 << 10)
        assert file.size == 64 << 10
        file.pwrite(b"x" * 8192, 16384)
        file.fsync()
        states = {piece.state: piece.length for piece in file.map()}
        assert states["written"] == 8192
        assert file.map()[0].logical == 0 and file.map()[0].physical % volume.block_size == 0
        assert file.seek(0, os.SEEK_DATA) == 16384 and file.seek(16384, os.SEEK_HOLE) == 24576
        with pytest.raises(OSError) as caught:
            file.seek(1 << 20, os.SEEK_DATA)
        assert caught.value.errno == errno.ENXIO
        file.fallocate(16384, 4096, "punch")
        assert file.pread(4096, 16384) == bytes(4096)
        file.prepare(64 << 10)
        assert {piece.state for piece in file.map()} == {"written"}
        file.truncate(100)
        assert file.stat().st_size == 100
        file.fdatasync()
        with pytest.raises(ValueError):
            file.fallocate(0, 1, "no-such")  # type: ignore[arg-type]


def test_direct_files_take_any_bytes(volume: uext4.Volume) -> None:
    with volume.open("/file", "w+b", 0, direct=True) as file:
        assert isinstance(file, uext4.File)
        before = volume.stats()
        block = uext4.Buffer(8192)
        memoryview(block)[:] = b"d" * 8192
        file.pwrite(block, 0)
        assert (volume.stats() - before).bounces == 0
        file.pwrite(b"any", 4095)
        assert (volume.stats() - before).bounces > 0
        assert file.preadinto(block, 0) == 8192
        assert bytes(block)[4090:4100] == b"dddddanydd"
        assert (volume.stats() - before).buffered_reads == 0


def test_durable_writes_survive_a_kill(image: Path) -> None:
    import subprocess
    import sys

    program = f"""
import os, uext4
volume = uext4.open({str(image)!r})
file = volume.open_raw("/file", "w")
file.pwrite(b"durable", 0, dsync=True)
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    with uext4.open(image) as volume:
        assert volume.path("file").read_bytes() == b"durable"


def test_atomic_writes(volume: uext4.Volume) -> None:
    with opened(volume.root / "file", "w+") as file:
        file.pwrite(b"a" * 8192, 0)
        before = volume.stats()
        file.pwrite(b"b" * 8192, 0, atomic=True, dsync=True)
        assert (volume.stats() - before).atomic_writes == 1
        with pytest.raises(OSError):
            file.pwrite(b"odd", 1, atomic=True)


def test_a_file_whose_size_is_a_lie_is_refused(volume: uext4.Volume) -> None:
    path = volume.root / "sparse"
    path.touch()
    path.truncate(1 << 40)
    with pytest.raises(OSError) as caught:
        path.read_bytes()
    assert caught.value.errno == errno.EFBIG
    assert path.volume.open_raw(path).pread(10, 1 << 39) == bytes(10)


def test_a_file_that_is_forgotten_is_open_until_its_last_call_is_over(volume: uext4.Volume) -> None:
    path = volume.root / "file"
    path.write_bytes(b"contents")
    found = opened(path, "r").pread(100, 0)
    assert found == b"contents"
    read = opened(path, "r").preadinto
    gc.collect()
    memory = bytearray(8)
    assert read(memory, 0) == 8
    del read
    opened(path, "r+").pwrite(b"C", 0)
    # Nobody has the inode: it is gone with its name.
    before = volume.statfs().free_inodes
    path.unlink()
    volume.sync()
    assert volume.statfs().free_inodes == before + 1


def test_a_removed_file_stays_open(volume: uext4.Volume) -> None:
    path = volume.root / "file"
    with opened(path, "w+") as open_file:
        open_file.pwrite(b"still here", 0)
        path.unlink()
        assert open_file.pread(10, 0) == b"still here"
        assert not path.exists()
