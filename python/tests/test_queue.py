"""Queues without asyncio, and the memory of their requests."""

from __future__ import annotations

import errno
import gc
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import uext4

BLOCK = 4096


@pytest.fixture
def file(volume: uext4.Volume) -> uext4.File:
    """A file of 64 blocks, each full of its number."""
    file = volume.open_raw("/file", "w+")
    for number in range(64):
        file.pwrite(bytes([number]) * BLOCK, number * BLOCK)
    file.fsync()
    return file


def test_requests_and_completions(volume: uext4.Volume, file: uext4.File) -> None:
    with volume.queue(16) as queue:
        buffers = [queue.buffer(BLOCK) for _ in range(16)]
        for number, buffer in enumerate(buffers):
            queue.read(file, buffer, number * BLOCK, ("read", number))
        assert queue.pending == 16
        done = queue.wait(16)
        assert sorted(completion.tag for completion in done) == [("read", number) for number in range(16)]
        assert {completion.result() for completion in done} == {BLOCK}
        assert [bytes(buffer) for buffer in buffers] == [bytes([number]) * BLOCK for number in range(16)]
        assert queue.pending == 0 and queue.wait(1) == [] and queue.poll() == []
        memoryview(buffers[0])[:] = b"w" * BLOCK
        queue.write(file, buffers[0], 0, "write", dsync=True)
        queue.fsync(file, "sync")
        queue.fdatasync(file)
        assert {completion.tag for completion in queue.wait(3)} == {"write", "sync", None}
        assert file.pread(BLOCK, 0) == b"w" * BLOCK
        queue.fallocate(file, 0, BLOCK, "punch")
        queue.wait()
        assert file.pread(BLOCK, 0) == bytes(BLOCK)


def test_the_end_of_a_file_and_failures(volume: uext4.Volume, file: uext4.File) -> None:
    with volume.queue(4) as queue, volume.open_raw("/file") as reader:
        buffer = queue.buffer(4 * BLOCK)
        queue.read(file, buffer, 62 * BLOCK, "end")
        assert queue.wait()[0].result() == 2 * BLOCK
        failures = []
        for pos in (1, 2**63 - 1):
            try:
                queue.read(file, buffer, pos, "misaligned")
                failures += [completion.error for completion in queue.wait()]
            except OSError as error:
                failures.append(error)
        assert [error.errno for error in failures if error] == [errno.EINVAL] * 2
        assert {error.filename for error in failures if error} == {"/file"}
        try:
            queue.write(reader, buffer, 0, "read-only")
            raise queue.wait()[0].error or AssertionError("a write to a file that is open for reading")
        except OSError as error:
            assert error.errno == errno.EBADF
        reader.close()
        with pytest.raises(ValueError, match="closed"):
            queue.read(reader, buffer, 0)


def test_a_full_queue(volume: uext4.Volume, file: uext4.File) -> None:
    memory = uext4.Buffer(32 << 20)
    with volume.queue(2) as queue:
        refused, done = 0, 0
        for number in range(200):
            part = memoryview(memory)[number * BLOCK : (number + 1) * BLOCK]
            while True:
                try:
                    queue.read(file, part, number % 64 * BLOCK, number)
                    break
                except BlockingIOError as error:
                    assert error.errno == errno.EAGAIN
                    refused += 1
                    done += len(queue.wait())
        while queue.pending:
            done += len(queue.wait())
        assert refused and done == 200
        assert all(memory_of(memory, number) == number % 64 for number in range(200))


def memory_of(memory: uext4.Buffer, number: int) -> int:
    block = memoryview(memory)[number * BLOCK : (number + 1) * BLOCK]
    assert len(set(block)) == 1
    return block[0]


def test_memory_is_pinned_until_the_completion(volume: uext4.Volume, file: uext4.File) -> None:
    memory = bytearray(3 * BLOCK)
    with volume.queue(8) as queue, memoryview(memory) as whole:
        # Any memory that happens to be aligned may be used.
        start = next(at for at in range(0, 2 * BLOCK, 16) if queue._native.is_aligned(whole[at : at + BLOCK]))
        part = whole[start : start + BLOCK]
        queue.read(file, part, 5 * BLOCK)
        del part
        whole.release()
        with pytest.raises(BufferError):
            memory.extend(b"more")
        assert queue.wait()[0].transferred == BLOCK
        memory.extend(b"more")
        assert memory[start : start + BLOCK] == bytes([5]) * BLOCK


def test_whoever_forgets_its_memory_frees_nothing(volume: uext4.Volume, file: uext4.File) -> None:
    queue = volume.queue(32)
    for round in range(50):
        for number in range(32):
            queue.read(file, uext4.Buffer(BLOCK), number * BLOCK, object())
        gc.collect()
        # The allocator gives the memory to others, if it were free.
        others = [bytearray(b"\xee" * BLOCK) for _ in range(64)]
        if round % 2:
            queue.wait(32)
        else:
            queue.close()
            queue = volume.queue(32)
        assert all(other == b"\xee" * BLOCK for other in others)
    for number in range(32):
        queue.read(file, uext4.Buffer(BLOCK), number * BLOCK)
    del queue
    gc.collect()


def test_a_queue_that_is_closed(volume: uext4.Volume, file: uext4.File) -> None:
    queue = volume.queue(4)
    buffer = queue.buffer(BLOCK)
    queue.read(file, buffer, 3 * BLOCK)
    queue.close()
    queue.close()
    assert bytes(buffer) == bytes([3]) * BLOCK
    for use in (queue.poll, queue.wait, lambda: queue.pending, queue.fileno, lambda: queue.read(file, buffer, 0)):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_the_descriptor(volume: uext4.Volume, file: uext4.File) -> None:
    with volume.queue(8) as queue:
        for _ in range(20):
            # A signal may come late, but it does not stay.
            queue.poll()
            assert select.select([queue], [], [], 0)[0] == []
            for number in range(8):
                queue.read(file, queue.buffer(BLOCK), number * BLOCK)
            done = len(queue.poll())
            while done < 8:
                assert select.select([queue], [], [], 10)[0], "no signal"
                done += len(queue.poll())


def test_a_wait_with_a_time_limit(volume: uext4.Volume, file: uext4.File) -> None:
    with volume.queue(4) as queue:
        began = time.monotonic()
        assert queue.wait(1, 0.5) == []
        assert time.monotonic() - began < 0.4, "nothing was in flight"
        queue.read(file, queue.buffer(BLOCK), 0)
        assert len(queue.wait(1, 10.0)) == 1
        with pytest.raises(ValueError):
            queue.wait(1, float("inf"))


def test_files_are_attached_and_forgotten(volume: uext4.Volume) -> None:
    with volume.queue(4) as queue:
        buffer = queue.buffer(BLOCK)
        for number in range(40):
            file = volume.open_raw(f"/file-{number}", "w+")
            file.pwrite(bytes([number]) * BLOCK, 0)
            file.fsync()
            queue.read(file, buffer, 0)
            assert queue.wait()[0].transferred == BLOCK and bytes(buffer) == bytes([number]) * BLOCK
            volume.path(f"file-{number}").unlink()
            if number % 2:
                queue.detach(file)
            file.close()
        other = volume.open_raw("/other", "w+")
        queue.fsync(other)
        queue.wait()
    # Nothing of the removed files is left, says `image` at the end.


def test_threads_share_a_queue(volume: uext4.Volume, file: uext4.File) -> None:
    seen: list[object] = []
    with volume.queue(64) as queue:

        def work(thread: int) -> None:
            for number in range(100):
                queue.read(file, queue.buffer(BLOCK), number % 64 * BLOCK, (thread, number))
                while not (done := queue.wait(1, 1.0)) and queue.pending:
                    pass
                seen.extend(completion.tag for completion in done)

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seen.extend(completion.tag for completion in queue.wait(1))
    assert sorted(seen) == [(thread, number) for thread in range(4) for number in range(100)]  # type: ignore[type-var]


def test_files_of_other_volumes_are_refused(volume: uext4.Volume, tmp_path: Path) -> None:
    uext4.mkfs(tmp_path / "second.img", 8 << 20)
    with uext4.open(tmp_path / "second.img") as second, volume.queue(4) as queue:
        with second.open_raw("/file", "w") as file, pytest.raises(OSError, match="different volumes"):
            queue.fsync(file)


def test_wishes(volume: uext4.Volume) -> None:
    with volume.queue(4, register_buffers="no") as queue:
        assert not queue.registered
    with volume.queue(4, buffer_bytes=1 << 20) as queue:
        assert isinstance(queue.registered, bool)
    with pytest.raises(ValueError):
        volume.queue(4, register_buffers="maybe")  # type: ignore[arg-type]
    with pytest.raises(OSError):
        volume.queue(0)


def test_a_program_may_end_with_requests_in_flight(image: Path) -> None:
    program = f"""
import asyncio, sys, uext4
volume = uext4.open({str(image)!r})
file = volume.open_raw("/file", "w+")
file.pwrite(bytes(1 << 20), 0, dsync=True)
queue = volume.queue(64)
for number in range(64):
    if number % 2:
        queue.read(file, queue.buffer(4096), number * 4096)
    else:
        queue.write(file, uext4.Buffer(4096), number * 4096)
queue.submit()

async def leave():
    queue = volume.aio()
    for number in range(32):
        asyncio.ensure_future(queue.read(file, 4096, number * 4096))
    await asyncio.sleep(0)
    sys.exit(7)

asyncio.run(leave())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr.replace("Traceback (most recent call last):\\nSystemExit", "")
