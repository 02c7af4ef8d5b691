"""Queues of asyncio."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
import time
from pathlib import Path

import pytest
import uext4

BLOCK = 4096
BLOCKS = 64


@pytest.fixture
def file(volume: uext4.Volume) -> uext4.File:
    file = volume.open_raw("/file", "w+")
    for number in range(BLOCKS):
        file.pwrite(bytes([number]) * BLOCK, number * BLOCK)
    file.fsync()
    return file


def test_many_requests_at_once(volume: uext4.Volume, file: uext4.File) -> None:
    async def main() -> None:
        async with volume.aio(8) as queue:
            found = await asyncio.gather(*(queue.read(file, BLOCK, number * BLOCK) for number in range(BLOCKS)))
            assert [bytes(block) for block in found] == [bytes([number]) * BLOCK for number in range(BLOCKS)]
            assert queue.pending == 0
            assert len(await queue.read(file, 4 * BLOCK, (BLOCKS - 1) * BLOCK)) == BLOCK
            assert len(await queue.read(file, BLOCK, BLOCKS * BLOCK)) == 0

    asyncio.run(main())


def test_memory_of_any_alignment(volume: uext4.Volume, file: uext4.File) -> None:
    async def main() -> None:
        async with volume.aio() as queue:
            memory = bytearray(2 * BLOCK + 1)
            for start in (0, 1):
                view = memoryview(memory)[start : start + BLOCK]
                assert await queue.readinto(file, view, 7 * BLOCK) == BLOCK
                assert view == bytes([7]) * BLOCK
                assert await queue.write(file, view, 9 * BLOCK, dsync=True) == BLOCK
            aligned = queue.buffer(BLOCK)
            assert await queue.readinto(file, aligned, 9 * BLOCK) == BLOCK
            assert bytes(aligned) == bytes([7]) * BLOCK
            with pytest.raises(BufferError):
                await queue.readinto(file, bytes(BLOCK + 1)[1:], 0)

    asyncio.run(main())


def test_syncs_and_blocks(volume: uext4.Volume, file: uext4.File) -> None:
    async def main() -> None:
        async with volume.aio() as queue:
            await queue.write(file, bytes(BLOCK), BLOCKS * BLOCK)
            await queue.fsync(file)
            await queue.fdatasync(file)
            await queue.fallocate(file, 0, BLOCK, "punch")
            assert await queue.read(file, BLOCK, 0) == bytes(BLOCK)
        assert file.size == (BLOCKS + 1) * BLOCK

    asyncio.run(main())


def test_failures_are_raised_where_they_are_awaited(volume: uext4.Volume, file: uext4.File) -> None:
    async def main() -> None:
        async with volume.aio(2) as queue:
            for _ in range(5):
                with pytest.raises(OSError) as caught:
                    await queue.read(file, BLOCK, 1)
                assert caught.value.errno == errno.EINVAL
            assert len(await queue.read(file, BLOCK, 0)) == BLOCK
        with pytest.raises(ValueError):
            await queue.read(file, BLOCK, 0)

    asyncio.run(main())


def test_a_cancelled_request_keeps_its_memory(volume: uext4.Volume, file: uext4.File) -> None:
    async def main() -> None:
        async with volume.aio(32) as queue:
            for round in range(40):
                memory = [uext4.Buffer(BLOCK) for _ in range(32)]
                tasks = [
                    asyncio.ensure_future(queue.readinto(file, buffer, number * BLOCK))
                    for number, buffer in enumerate(memory)
                ]
                await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                del memory
                results = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(result == BLOCK or isinstance(result, asyncio.CancelledError) for result in results)
                gc.collect()
                others = [bytearray(b"\xee" * BLOCK) for _ in range(64)]
                if round % 4 == 0:
                    await queue.fsync(file)
                assert all(other == b"\xee" * BLOCK for other in others)

    asyncio.run(main())


def test_room_comes_back_after_cancelled_requests(volume: uext4.Volume, file: uext4.File) -> None:
    async def main() -> None:
        async with volume.aio(1) as queue:
            for _ in range(20):
                task = asyncio.ensure_future(queue.read(file, BLOCK, 0))
                await asyncio.sleep(0)
                task.cancel()
            assert await asyncio.wait_for(queue.read(file, BLOCK, BLOCK), 10) == bytes([1]) * BLOCK

    asyncio.run(main())


def test_other_tasks_run_meanwhile(volume: uext4.Volume, file: uext4.File) -> None:
    async def main() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with volume.aio(4) as queue:
            task = asyncio.ensure_future(others())
            for number in range(200):
                await queue.read(file, BLOCK, number % BLOCKS * BLOCK)
            task.cancel()
        assert turns >= 200

    asyncio.run(main())


def test_a_queue_belongs_to_one_loop(volume: uext4.Volume, file: uext4.File) -> None:
    queue = volume.aio()
    assert len(asyncio.run(queue.read(file, BLOCK, 0))) == BLOCK
    with pytest.raises(RuntimeError):
        asyncio.run(queue.read(file, BLOCK, 0))
    queue.close()


def test_closing_the_volume_ends_what_is_awaited(image: Path) -> None:
    async def main() -> None:
        volume = uext4.open(image)
        file = volume.open_raw("/file", "w+")
        file.pwrite(bytes(BLOCK), 0)
        queue = volume.aio()
        tasks = [asyncio.ensure_future(queue.read(file, BLOCK, 0)) for _ in range(4)]
        await asyncio.sleep(0)
        volume.close()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, (ValueError, memoryview))

    asyncio.run(main())


def test_closing_ends_what_waits_for_room(image: Path) -> None:
    async def main() -> None:
        volume = uext4.open(image)
        file = volume.open_raw("/file", "w+")
        file.pwrite(bytes(BLOCK), 0)
        queue = volume.aio(1)
        tasks = [asyncio.ensure_future(queue.read(file, BLOCK, 0)) for _ in range(6)]
        await asyncio.sleep(0)
        volume.close()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert all(isinstance(result, ValueError) for result in results)

    asyncio.run(main())


def test_closing_ends_who_waits_for_the_end(volume: uext4.Volume, file: uext4.File) -> None:
    async def main() -> None:
        queue = volume.aio(4)
        tasks = [asyncio.ensure_future(queue.read(file, BLOCK, 0)) for _ in range(4)]
        ending = asyncio.ensure_future(queue.aclose())
        # All have begun, and the queue was not looked at yet.
        await asyncio.sleep(0)
        assert queue.pending == 4
        queue.close()
        await asyncio.wait_for(ending, 10)
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def test_a_queue_that_fails_fails_what_is_awaited(volume: uext4.Volume, file: uext4.File) -> None:
    class Failing:
        """The queue, until it cannot tell of completions any more."""

        def __init__(self, native: object) -> None:
            self.native = native

        def __getattr__(self, name: str) -> object:
            return getattr(self.native, name)

        def poll(self) -> object:
            raise OSError(errno.EIO, "the queue has failed")

    async def main() -> None:
        queue = volume.aio(2)
        native = queue._native
        queue._native = Failing(native)  # type: ignore[assignment]
        for _ in range(2):
            reads = (queue.read(file, BLOCK, 0) for _ in range(5))
            results = await asyncio.wait_for(asyncio.gather(*reads, return_exceptions=True), 10)
            assert all(isinstance(result, OSError) and result.errno == errno.EIO for result in results), results
        assert queue.pending == 0
        await queue.aclose()
        assert native.closed

    asyncio.run(main())


def test_another_thread_closes_the_volume(image: Path) -> None:
    async def main() -> None:
        volume = uext4.open(image)
        file = volume.open_raw("/file", "w+")
        file.pwrite(bytes(BLOCK), 0)
        queue = volume.aio(1)
        tasks = [asyncio.ensure_future(queue.read(file, BLOCK, 0)) for _ in range(6)]
        await asyncio.sleep(0)
        # The loop stands still meanwhile, so that nothing is over before.
        closing = threading.Thread(target=volume.close)
        closing.start()
        closing.join()
        begun = time.monotonic()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert time.monotonic() - begun < 5

    asyncio.run(main())


def test_a_device_without_a_descriptor(image: Path, tmp_path: Path) -> None:
    with uext4.open(image) as volume:
        volume.path("file").write_bytes(b"d" * BLOCK)

    async def main() -> None:
        with uext4.open(f"sync:{image}", read_only=True) as volume, volume.open_raw("/file") as file:
            async with volume.aio(4) as queue:
                found = await asyncio.gather(*(queue.read(file, BLOCK, 0) for _ in range(20)))
                assert {bytes(block) for block in found} == {b"d" * BLOCK}

    asyncio.run(main())
