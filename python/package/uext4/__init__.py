"""ext4 volumes in user space.

    import uext4

    with uext4.open("disk.img") as volume:
        for path in volume.root.rglob("*.conf"):
            print(path, path.stat().st_size)

`open` gives a `Volume`, its `root` and `path` give paths as those of `pathlib`, and those open files as those of `io`.
`Volume.queue` and `Volume.aio` are for many requests at once. `mkfs` makes volumes, `check` looks for damage.
`uext4.fsspec` has the file system `ext4://` of fsspec.
"""

from __future__ import annotations

from ._aio import AsyncQueue
from ._errors import CorruptError
from ._facts import (
    CheckReport,
    Counts,
    DeviceRequest,
    Explanation,
    Finding,
    Info,
    Made,
    NotExamined,
    Piece,
    StatFs,
    Stats,
)
from ._file import File
from ._make import check, mkfs
from ._path import Path
from ._queue import Completion, Queue
from ._uext4 import Buffer, Entry, Stat, __version__
from ._volume import Volume
from ._volume import open_volume as open

__all__ = [
    "AsyncQueue",
    "Buffer",
    "CheckReport",
    "Completion",
    "CorruptError",
    "Counts",
    "DeviceRequest",
    "Entry",
    "Explanation",
    "File",
    "Finding",
    "Info",
    "Made",
    "NotExamined",
    "Path",
    "Piece",
    "Queue",
    "Stat",
    "StatFs",
    "Stats",
    "Volume",
    "__version__",
    "check",
    "mkfs",
    "open",
]
