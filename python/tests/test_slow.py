"""A device that takes 100 ms for each request: what happens meanwhile."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uext4

BLOCK = 4096
LATENCY = 0.1


@pytest.fixture
def file(image: Path) -> Iterator[uext4.File]:
    with uext4.open(image) as volume:
        volume.path("file").write_bytes(bytes(range(64)) * 4096)
    with uext4.open(f"{image}?latency=100ms", read_only=True) as slow, slow.open_raw("/file") as file:
        # What it takes to find the blocks is in memory from here on.
        file.map()
        yield file


def test_threads_run_during_a_read(file: uext4.File) -> None:
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.005):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    began = time.monotonic()
    file.preadinto(bytearray(BLOCK), 0)
    ended = time.monotonic()
    stop.set()
    thread.join()
    assert ended - began >= LATENCY
    assert len([when for when in ticks if began < when < ended]) >= 3


def test_ctrl_c_ends_a_wait(image: Path) -> None:
    with uext4.open(f"{image}?flush_latency=1500ms") as volume, volume.queue(4) as queue:
        file = volume.open_raw("/file", "w+")
        file.pwrite(bytes(BLOCK), 0)
        queue.fsync(file, "slow")
        queue.poll()
        timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
        timer.daemon = True
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            queue.wait(1, 30.0)
        assert time.monotonic() - began < 1.0
        # The request goes on, and its completion is not lost.
        assert [done.tag for done in queue.wait()] == ["slow"]


def test_memory_that_nobody_names_is_pinned_until_the_request_is_over(file: uext4.File) -> None:
    with file.volume.queue(4) as queue:
        memory = bytearray(3 * BLOCK)
        with memoryview(memory) as whole:
            start = next(at for at in range(2 * BLOCK) if queue._native.is_aligned(whole[at : at + BLOCK]))
        queue.read(file, memoryview(memory)[start : start + BLOCK], 0)
        queue.submit()
        with pytest.raises(BufferError):
            memory.extend(b"more")
        assert queue.wait()[0].transferred == BLOCK
        memory.extend(b"more")
        assert memory[start : start + BLOCK] == bytes(range(64)) * 64


def test_memory_is_pinned_until_a_closed_queue_has_ended(file: uext4.File) -> None:
    queue = file.volume.queue(4)
    memory = bytearray(3 * BLOCK)
    with memoryview(memory) as whole:
        start = next(at for at in range(2 * BLOCK) if queue._native.is_aligned(whole[at : at + BLOCK]))
    queue.read(file, memoryview(memory)[start : start + BLOCK], 0)
    began = time.monotonic()
    queue.submit()
    closing = threading.Thread(target=queue.close)
    closing.start()
    time.sleep(LATENCY / 4)
    try:
        memory.extend(b"more")
    except BufferError:
        pass
    else:
        assert time.monotonic() - began >= 0.9 * LATENCY
    closing.join()
    memory.extend(b"more")
    assert memory[start : start + BLOCK] == bytes(range(64)) * 64


def test_memory_of_a_cancelled_request_is_pinned_until_it_is_over(file: uext4.File) -> None:
    async def main() -> None:
        async with file.volume.aio(4) as queue:
            memory = bytearray(3 * BLOCK)
            with memoryview(memory) as whole:
                start = next(at for at in range(2 * BLOCK) if queue._native.is_aligned(whole[at : at + BLOCK]))
            task = asyncio.ensure_future(queue.readinto(file, memoryview(memory)[start : start + BLOCK], 0))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert queue.pending == 1
            with pytest.raises(BufferError):
                memory.extend(b"more")
            began = time.monotonic()
            await queue.aclose()
            assert time.monotonic() - began >= LATENCY / 4
            memory.extend(b"more")
            assert memory[start : start + BLOCK] == bytes(range(64)) * 64

    asyncio.run(main())


def test_requests_overlap_and_the_loop_goes_on(file: uext4.File) -> None:
    async def main() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.005)

        async with file.volume.aio(32) as queue:
            task = asyncio.ensure_future(others())
            began = time.monotonic()
            found = await asyncio.gather(*(queue.read(file, BLOCK, number * BLOCK) for number in range(32)))
            took = time.monotonic() - began
            task.cancel()
        assert {bytes(block) for block in found} == {bytes(range(64)) * 64}
        assert LATENCY <= took < 16 * LATENCY and turns >= 3

    asyncio.run(main())
