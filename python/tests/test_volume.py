"""Opening and closing; who may use a volume, and when."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import uext4
from conftest import fsck


def test_what_is_written_is_there_for_the_next_one(image: Path) -> None:
    with uext4.open(image) as volume:
        (volume.root / "greeting").write_text("hello")
        assert not volume.closed
    assert volume.closed
    with uext4.open(image, read_only=True) as volume:
        assert volume.path("greeting").read_text() == "hello"


def test_a_closed_volume_is_a_value_error(image: Path) -> None:
    volume = uext4.open(image)
    path = volume.root / "a"
    path.write_bytes(b"1")
    file = path.open("rb", buffering=0)
    walk = volume.walk()
    queue = volume.queue()
    volume.close()
    volume.close()
    for use in (
        path.read_bytes,
        volume.sync,
        volume.info,
        lambda: file.read(1),
        lambda: file.preadinto(bytearray(1), 0),
        lambda: queue.buffer(4096),
        volume.__enter__,
        lambda: volume.walk(),
        lambda: next(walk),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert file.closed


def test_closing_a_volume_writes_what_files_have_in_python_s_buffers(image: Path) -> None:
    volume = uext4.open(image)
    text = volume.open("/text", "w")
    text.write("a line\n")
    binary = volume.open("/binary", "wb")
    binary.write(b"some bytes")
    detached = volume.open("/detached", "w").detach()
    detached.write(b"of a buffer that lost its wrapper")
    volume.close()
    assert text.closed and binary.closed and detached.closed
    with uext4.open(image, read_only=True) as volume:
        assert volume.path("text").read_text() == "a line\n"
        assert volume.path("binary").read_bytes() == b"some bytes"
        assert volume.path("detached").read_bytes() == b"of a buffer that lost its wrapper"


def test_a_forgotten_volume_is_closed(image: Path) -> None:
    volume = uext4.open(image)
    volume.path("kept").write_bytes(b"x" * 10_000)
    del volume
    gc.collect()
    with uext4.open(image) as volume:
        assert len(volume.path("kept").read_bytes()) == 10_000


def test_a_program_that_ends_closes_its_volumes(image: Path) -> None:
    program = f"""
import ctypes
import uext4
volume = uext4.open({str(image)!r})
file = volume.open("/late", "w")
file.write("written at the end")
# Nobody frees it: as if it were held by a thread, or a cycle that the interpreter leaves.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(volume))
ctypes.pythonapi.Py_IncRef(ctypes.py_object(file))
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    fsck(image)
    with uext4.open(image, read_only=True) as volume:
        assert volume.info().recovery == "clean"
        assert volume.path("late").read_text() == "written at the end"


def test_a_device_in_use_is_refused_and_named(image: Path, volume: uext4.Volume) -> None:
    with pytest.raises(OSError) as caught:
        uext4.open(image)
    assert caught.value.errno == errno.EBUSY
    assert caught.value.filename == str(image)
    volume.close()
    with uext4.open(image, read_only=True) as one, uext4.open(image, read_only=True) as other:
        assert one.root.stat() == other.root.stat()


def test_a_volume_that_is_read_only_refuses_changes(image: Path) -> None:
    before = image.read_bytes()
    with uext4.open(image, read_only=True) as volume:
        assert not volume.writable
        for change in (
            lambda: volume.path("a").write_bytes(b""),
            lambda: volume.path("a").mkdir(),
            lambda: volume.root.chmod(0o700),
            lambda: volume.root.set_xattr("user.a", b""),
        ):
            with pytest.raises(OSError) as caught:
                change()
            assert caught.value.errno == errno.EROFS
    assert image.read_bytes() == before


def test_what_is_no_volume_and_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        uext4.open(tmp_path / "none.img")
    assert caught.value.filename == str(tmp_path / "none.img")
    (tmp_path / "zeros.img").write_bytes(bytes(1 << 20))
    with pytest.raises(OSError, match="not an ext2/3/4 volume"):
        uext4.open(tmp_path / "zeros.img")
    with pytest.raises(OSError, match="s3"):
        uext4.open("s3://bucket/disk.img")
    with pytest.raises(ValueError, match="null byte"):
        uext4.open("a\0b")


def test_paths_of_devices_are_taken_as_they_are(tmp_path: Path) -> None:
    odd = tmp_path / "disk.img?partition=2"
    uext4.mkfs(odd, 8 << 20)
    uext4.mkfs(tmp_path / "100%41.img", 8 << 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["100%41.img", "disk.img?partition=2"]
    with uext4.open(odd) as volume:
        assert volume.device == str(odd)
    assert uext4.check(odd).clean
    # Text is in the device grammar.
    with uext4.open(f"{tmp_path}/100%2541.img"), uext4.open(os.fsencode(tmp_path) + b"/disk.img%3Fpartition=2"):
        pass
    with pytest.raises(FileNotFoundError):
        uext4.open(str(odd))
    with pytest.raises(TypeError):
        uext4.open(3)  # type: ignore[arg-type]


def test_options_are_passed_on(image: Path) -> None:
    with uext4.open(image, atime="strict", page_budget=0, switches="simple-read=off", commit_interval=1.5) as volume:
        path = volume.path("a")
        path.write_bytes(b"x" * 4096)
        path.utime(ns=(0, 0))
        before = volume.stats()
        with path.open("rb", buffering=0) as file:
            assert file.preadinto(uext4.Buffer(4096), 0) == 4096
        counted = volume.stats() - before
        assert (counted.simple_reads, counted.general_reads, counted.buffered_reads) == (0, 1, 0)
        assert path.stat().st_atime_ns > 0
    for wrong in ({"atime": "often"}, {"switches": "no-such=off"}, {"commit_interval": -1.0}):
        with pytest.raises(ValueError):
            uext4.open(image, **wrong)
    with pytest.raises(TypeError):
        uext4.open(image, no_such_option=1)


def test_the_journal_of_a_killed_program_is_replayed(image: Path) -> None:
    program = f"""
import os, uext4
volume = uext4.open({str(image)!r}, background=False)
(volume.root / "synced").mkdir()
volume.sync()
(volume.root / "not synced").mkdir()
os._exit(1)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 1
    with uext4.open(image, read_only=True) as volume:
        assert volume.info().recovery == "overlay"
        assert [path.name for path in volume.root.iterdir() if "synced" in path.name] == ["synced"]
    with uext4.open(image) as volume:
        assert volume.info().recovery == "replayed"


def test_a_child_process_is_refused_and_harms_nothing(image: Path) -> None:
    volume = uext4.open(image)
    path = volume.path("a")
    path.write_bytes(b"parent")
    file = path.open("r+b", buffering=0)
    queue = volume.queue()
    walk = volume.walk()
    stop = threading.Event()

    def busy() -> None:
        # Locks are held at the moment of the fork.
        memory = bytearray(4096)
        while not stop.is_set():
            file.preadinto(memory, 0)

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            refused = 0
            uses = (
                path.read_bytes,
                volume.sync,
                volume.close,
                lambda: file.pread(1, 0),
                lambda: file.pwrite(b"child", 0),
                lambda: queue.read(file, bytearray(512), 0),
                lambda: next(walk),
                file.close,
            )
            for use in uses:
                try:
                    use()
                except PermissionError as error:
                    refused += "fork" in str(error)
            del file, queue, walk, path, volume
            gc.collect()
            os._exit(0 if refused == len(uses) - 1 else 1 + refused)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert path.read_bytes() == b"parent"
    volume.close()


def test_threads_share_a_volume(image: Path) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            here = volume.root / f"thread-{number}"
            here.mkdir()
            for round in range(30):
                path = here / f"file-{round}"
                path.write_bytes(bytes([number]) * 5000)
                assert path.read_bytes() == bytes([number]) * 5000
                path.rename(here / f"named-{round}")
            assert len(list(here.iterdir())) == 30
        except BaseException as error:
            failures.append(error)

    with uext4.open(image) as volume:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_an_open_walk_does_not_keep_the_device(image: Path) -> None:
    with uext4.open(image) as volume:
        for number in range(3):
            volume.path(f"d{number}").mkdir()
    volume = uext4.open(image)
    walks = [volume.walk("/"), volume.walk("/", stat=False), volume.root.rglob("*")]
    for walk in walks:
        next(walk)
    volume.walk("/").close()  # type: ignore[attr-defined]
    volume.close()
    uext4.open(image).close()
    for walk in walks:
        with pytest.raises(ValueError):
            next(walk)


def test_a_walk_keeps_a_volume_that_nobody_names(image: Path) -> None:
    with uext4.open(image) as volume:
        for number in range(2000):
            volume.path(f"d{number}").mkdir()
    walk = uext4.open(image, read_only=True).walk("/")
    gc.collect()
    assert len(list(walk)) == 2002
    del walk
    uext4.open(image).close()


def test_a_volume_is_closed_while_threads_open_files(image: Path) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            volume = uext4.open(image)
            kept = [volume.open_raw("/file", "a") for _ in range(200)]

            def work() -> None:
                with contextlib.suppress(ValueError):
                    while True:
                        kept.append(volume.open_raw("/file"))

            threads = [threading.Thread(target=work) for _ in range(2)]
            for thread in threads:
                thread.start()
            volume.close()
            for thread in threads:
                thread.join()
            assert volume.closed
    finally:
        sys.setswitchinterval(interval)


def test_repr(image: Path) -> None:
    volume = uext4.open(image)
    assert repr(volume) == f"<uext4.Volume '{image}' read-write>"
    assert repr(volume.path("a/b")) == "<uext4.Path '/a/b'>"
    with volume.open("/f", "wb", 0) as file:
        assert repr(file) == "<uext4.File '/f' mode='wb'>"
    assert repr(file) == "<uext4.File '/f' closed>"
    assert repr(volume.queue(7)) == "<uext4.Queue depth=7>"
    assert repr(uext4.Buffer(4096)) == "<uext4.Buffer of 4096 bytes>"
    assert "ino=2 mode=0o40755" in repr(volume.root.stat())
    volume.close()
    assert repr(volume) == f"<uext4.Volume '{image}' closed>"
