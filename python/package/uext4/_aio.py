"""Queues of asynchronous requests for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from . import _uext4
from ._file import File

if TYPE_CHECKING:
    from typing_extensions import Buffer as BufferLike

POLL_SECONDS = 0.0005
"""Between two looks at a device that has no descriptor for completions."""


class AsyncQueue:
    """Requests that are awaited, from `Volume.aio`: `async with volume.aio() as queue: await queue.read(…)`.

    Direct I/O: positions and lengths are multiples of what `Volume.alignment` says. Memory of `buffer()` goes to the
    device as it is, other memory through a buffer of the queue if it is not aligned. Requests of one turn of the loop
    are sent together. More than `depth` wait for room.

    A request whose await was cancelled goes on: its memory stays pinned until it is over. Writes that need blocks, and
    changes of blocks, run on the loop's thread until they are journaled.
    """

    def __init__(self, native: _uext4.NativeQueue, depth: int) -> None:
        self._native = native
        self._depth = depth
        self._room = asyncio.Semaphore(depth)
        self._waiting: set[asyncio.Future[int]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: int | None = None
        self._turn_is_due = False
        self._failure: OSError | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def __repr__(self) -> str:
        return f"<uext4.AsyncQueue depth={self._depth}{' closed' if self._native.closed else ''}>"

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def depth(self) -> int:
        return self._depth

    @property
    def pending(self) -> int:
        """Requests in flight, those with a cancelled await included."""
        return len(self._waiting)

    def buffer(self, length: int) -> _uext4.Buffer:
        """Memory for requests of this queue, which the kernel has registered if it can."""
        return self._native.buffer(length)

    async def read(self, file: File, length: int, pos: int) -> memoryview:
        """Reads `length` bytes from byte `pos` on into memory of the queue; fewer at the end of the file."""
        buffer = self._native.buffer(length)
        count = await self._run(lambda future: self._native.read(file._native, buffer, pos, future))
        return memoryview(buffer)[:count]

    async def readinto(self, file: File, buffer: BufferLike, pos: int) -> int:
        """Reads into a writable buffer from byte `pos` on. Returns how many bytes."""
        if self._native.is_aligned(buffer):
            return await self._run(lambda future: self._native.read(file._native, buffer, pos, future))
        with memoryview(buffer) as view, view.cast("B") as target:
            if target.readonly:
                raise BufferError("the buffer is read-only")
            read = await self.read(file, len(target), pos)
            target[: len(read)] = read
            return len(read)

    async def write(
        self, file: File, data: BufferLike, pos: int, *, dsync: bool = False, sync: bool = False
    ) -> int:
        """Writes at byte `pos`. With `dsync` or `sync` the bytes are durable when it returns."""
        if not self._native.is_aligned(data):
            with memoryview(data) as view, view.cast("B") as source:
                buffer = self._native.buffer(len(source))
                memoryview(buffer)[:] = source
            data = buffer
        return await self._run(
            lambda future: self._native.write(file._native, data, pos, future, dsync=dsync, sync=sync)
        )

    async def fsync(self, file: File) -> None:
        """As `File.fsync`, for requests that were over before."""
        await self._run(lambda future: self._native.sync(file._native, future, False))

    async def fdatasync(self, file: File) -> None:
        """As `File.fdatasync`, for requests that were over before."""
        await self._run(lambda future: self._native.sync(file._native, future, True))

    async def fallocate(self, file: File, pos: int, length: int, how: str = "allocate") -> None:
        """As `File.fallocate`, after the requests of the file."""
        await self._run(lambda future: self._native.fallocate(file._native, how, (pos, length), future))

    async def _run(self, begin: Callable[[asyncio.Future[int]], None]) -> int:
        loop = self._own_loop()
        await self._room.acquire()
        future: asyncio.Future[int] = loop.create_future()
        try:
            if self._failure is not None:
                raise self._failure
            begin(future)
        except BaseException:
            self._room.release()
            raise
        self._waiting.add(future)
        self._idle.clear()
        if not self._turn_is_due:
            # All requests of this turn of the loop are sent at its end.
            self._turn_is_due = True
            loop.call_soon(self._turn)
        return await future

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._event = self._native.event()
            if self._event is not None:
                loop.add_reader(self._event, self._reap)
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError("the queue belongs to another event loop")
        return loop

    def _turn(self) -> None:
        self._turn_is_due = False
        self._reap()
        if self._event is None and self._waiting and self._loop is not None:
            self._turn_is_due = True
            self._loop.call_later(POLL_SECONDS, self._turn)

    def _reap(self) -> None:
        if self._native.closed or self._failure is not None:
            return
        try:
            completions = self._native.poll()
        except OSError as error:
            # The queue itself has failed: it takes no more requests. Its descriptor may stay readable.
            if self._event is not None and self._loop is not None:
                self._loop.remove_reader(self._event)
                self._event = None
            self._failure = error
            self._give_up(error)
            return
        for future, count, refusal in completions:
            self._waiting.discard(future)
            self._room.release()
            if future.done():
                continue
            if refusal is None:
                future.set_result(count)
            else:
                future.set_exception(refusal)
        if not self._waiting:
            self._idle.set()

    async def aclose(self) -> None:
        """Waits for what is in flight, then closes the queue."""
        while self._waiting:
            await self._idle.wait()
        self.close()

    def close(self) -> None:
        """Closes the queue at once: waits for the device, not for the loop. What is still awaited fails."""
        loop = self._loop
        open_loop = loop if loop is not None and not loop.is_closed() else None
        if open_loop is not None and self._event is not None:
            open_loop.remove_reader(self._event)
        self._event = None
        self._native.close()
        if open_loop is None:
            self._waiting.clear()
        elif open_loop.is_running() and open_loop is not asyncio._get_running_loop():
            # The volume was closed by another thread: the loop has to wake up to see what becomes of its requests.
            open_loop.call_soon_threadsafe(self._give_up)
        else:
            self._give_up()

    def _give_up(self, error: OSError | None = None) -> None:
        """Fails what is awaited: in flight, for room, or for the end."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(error or ValueError("the queue was closed"))
            # Each request that waited for room finds the queue closed, and lets the next one do so.
            self._room.release()
        self._waiting.clear()
        self._idle.set()
