"""Queues of asynchronous requests for programs without asyncio."""

from __future__ import annotations

import io
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _uext4
from ._file import File

if TYPE_CHECKING:
    from typing_extensions import Buffer as BufferLike


class Completion(NamedTuple):
    """A request that is over."""

    tag: Any
    """What the program gave with the request."""
    transferred: int | None
    """Bytes that were read or written; `None` if it failed."""
    error: OSError | None
    """Why it failed."""

    def result(self) -> int:
        """The bytes, or the exception."""
        if self.error is not None:
            raise self.error
        assert self.transferred is not None
        return self.transferred


class Queue:
    """Requests that run while the program does something else, from `Volume.queue`.

    Each request has a tag, any object, which comes back with its completion. Direct I/O: positions, lengths and
    memory are multiples of what `Volume.alignment` says; memory from `buffer()` is. The memory of a request is pinned
    until the request is over: it cannot be resized or freed, and its contents are the queue's until then.

    Threads may share a queue, but each gets the completions of all.
    """

    def __init__(self, native: _uext4.NativeQueue, depth: int) -> None:
        self._native = native
        self._depth = depth

    def __repr__(self) -> str:
        return f"<uext4.Queue depth={self._depth}{' closed' if self._native.closed else ''}>"

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def depth(self) -> int:
        """Requests at once. One more is a `BlockingIOError`, unless some are over by then."""
        return self._depth

    def read(self, file: File, buffer: BufferLike, pos: int, tag: object = None) -> None:
        """Reads into a writable buffer from byte `pos` on."""
        self._native.read(file._native, buffer, pos, tag)

    def write(
        self,
        file: File,
        data: BufferLike,
        pos: int,
        tag: object = None,
        *,
        dsync: bool = False,
        sync: bool = False,
    ) -> None:
        """Writes at byte `pos`. With `dsync` or `sync` it is durable when it is over."""
        self._native.write(file._native, data, pos, tag, dsync=dsync, sync=sync)

    def fsync(self, file: File, tag: object = None) -> None:
        """As `File.fsync`, for requests that were over before."""
        self._native.sync(file._native, tag, False)

    def fdatasync(self, file: File, tag: object = None) -> None:
        """As `File.fdatasync`, for requests that were over before."""
        self._native.sync(file._native, tag, True)

    def fallocate(self, file: File, pos: int, length: int, how: str = "allocate", tag: object = None) -> None:
        """As `File.fallocate`, after the requests of the file."""
        self._native.fallocate(file._native, how, (pos, length), tag)

    def submit(self) -> None:
        """Sends what was queued. `wait` and `poll` do so, too."""
        self._native.submit()

    def wait(self, count: int = 1, timeout: float | None = None) -> list[Completion]:
        """All completions there are, when there are `count`, or all that are in flight, or after `timeout` seconds."""
        return [Completion(*given) for given in self._native.wait(count, timeout)]

    def poll(self) -> list[Completion]:
        """The completions there are."""
        return [Completion(*given) for given in self._native.poll()]

    @property
    def pending(self) -> int:
        """Requests whose completions were not given yet."""
        return self._native.pending

    def buffer(self, length: int) -> _uext4.Buffer:
        """Memory for requests of this queue, which the kernel has registered if it can."""
        return self._native.buffer(length)

    def detach(self, file: File) -> None:
        """Forgets a file. It is attached by its first request, and forgotten at the latest with the queue."""
        self._native.detach(file._native)

    def fileno(self) -> int:
        """A descriptor that is readable when requests may be over: for `select` and the like, never to be read.

        Call `poll` once after requests, before you wait for it. Devices without one raise `UnsupportedOperation`.
        """
        event = self._native.event()
        if event is None:
            raise io.UnsupportedOperation("completions of this device come without a descriptor: poll()")
        return event

    @property
    def registered(self) -> bool:
        """Whether the kernel has the memory of `buffer()` registered."""
        return self._native.facts[0]

    def close(self) -> None:
        """Waits for what is in flight. Completions that were not reaped are lost, what they did is not."""
        self._native.close()
