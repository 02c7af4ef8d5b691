"""Exceptions that are not Python's own."""

from __future__ import annotations


class CorruptError(OSError):
    """Metadata of the volume is damaged (errno `EUCLEAN`).

    `block` and `inode` say where, as far as that is known.
    """

    block: int | None = None
    inode: int | None = None
