"""Making and checking volumes."""

from __future__ import annotations

import datetime
import hashlib
import os
import uuid as uuids
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from . import _uext4
from ._facts import CheckReport, Made, check_report

StrPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""What names a device: text in the device grammar, or as an `os.PathLike` the name of a file, taken as it is."""


def _words(given: str | Iterable[str] | None) -> list[str]:
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)


def _source(given: StrPath) -> bytes | tuple[bytes, str | None]:
    """A directory or an archive; `oci:FOLDER[:TAG]` is an image of a container."""
    name = os.fsencode(given)
    if not name.startswith(b"oci:"):
        return name
    image = name.removeprefix(b"oci:")
    folder, colon, tag = image.rpartition(b":")
    # A folder's name may have a colon: the last one is before the tag.
    if not colon or os.path.isdir(image):
        return image, None
    return folder, tag.decode()


def _sources(tree: StrPath | Sequence[StrPath] | None) -> list[bytes | tuple[bytes, str | None]]:
    if tree is None:
        return []
    if isinstance(tree, (str, bytes, os.PathLike)):
        return [_source(tree)]
    return [_source(source) for source in tree]


def _seconds(time: int | datetime.datetime | None) -> int | None:
    if isinstance(time, datetime.datetime):
        return int(time.timestamp())
    if time is None and "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    return time


def _hash_seed(uuid: uuids.UUID) -> uuids.UUID:
    """The seed of the hashes of names, of a UUID that was given: the one that `uext4 mkfs` takes."""
    digest = bytearray(hashlib.sha256(b"hash_seed" + uuid.bytes).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return uuids.UUID(bytes=bytes(digest))


def mkfs(
    device: StrPath,
    size: int | Literal["auto"] | None = None,
    *,
    tree: StrPath | Sequence[StrPath] | None = None,
    free: int | None = None,
    free_percent: float | None = None,
    owner: tuple[int, int] | None = None,
    type: Literal["ext2", "ext3", "ext4"] = "ext4",
    compat: Literal["upstream", "debian12"] = "upstream",
    usage: str | None = None,
    block_size: int | None = None,
    cluster_size: int | None = None,
    inode_size: int | None = None,
    bytes_per_inode: int | None = None,
    inodes: int | None = None,
    label: str | bytes = "",
    uuid: uuids.UUID | str | None = None,
    hash_seed: uuids.UUID | str | None = None,
    features: str | Iterable[str] | None = None,
    extended: str | Iterable[str] | None = None,
    journal: str | Iterable[str] | None = None,
    reserved_percent: float | None = None,
    time: int | datetime.datetime | None = None,
    read_only: bool = False,
    force: bool = False,
    dry_run: bool = False,
) -> Made:
    """Makes a volume on `device`, as `uext4 mkfs` does with options of the same names.

    `size` is in bytes: a missing image file is created with it; `None` takes the whole device, `"auto"` the smallest
    size for the files of `tree`, with `free` bytes or `free_percent` besides. `tree` names directories of the host,
    archives of tar, or `oci:FOLDER[:TAG]`; several are layers. A device that holds something is refused
    (`FileExistsError`) without `force`, one in use always. A `uuid` and a `time` (or `SOURCE_DATE_EPOCH` in the
    environment) make the same volume of the same files each time.
    """
    chosen = uuids.UUID(uuid) if isinstance(uuid, str) else uuid
    more = _words(extended)
    if hash_seed is None and chosen is not None and chosen.int != 0:
        hash_seed = _hash_seed(chosen)
    if hash_seed is not None:
        more.insert(0, f"hash_seed={hash_seed}")
    how: dict[str, Any] = {
        "size": None if size == "auto" else size,
        "fit": size == "auto" or (read_only and size is None),
        "free": free,
        "free_percent": free_percent,
        "sources": _sources(tree),
        "owner": owner,
        "kind": type,
        "debian12": compat == "debian12",
        "usage": usage,
        "block_size": block_size,
        "cluster_size": cluster_size,
        "inode_size": inode_size,
        "bytes_per_inode": bytes_per_inode,
        "inodes": inodes,
        "label": label,
        "uuid": None if chosen is None else chosen.bytes,
        "features": _words(features),
        "extended": more,
        "journal": _words(journal),
        "reserved_percent": reserved_percent,
        "time": _seconds(time),
        "read_only": read_only,
        "force": force,
        "dry_run": dry_run,
    }
    if how["fit"] and not how["sources"]:
        raise ValueError('the size "auto" is that of files: name them with tree=')
    if (free is not None or free_percent is not None) and not how["fit"]:
        raise ValueError('free and free_percent are for the size "auto"')
    return Made(**_uext4.mkfs(device, how))


def check(
    device: StrPath,
    *,
    threads: int | None = None,
    per_kind: int = 100,
    force: bool = False,
    journals: Iterable[StrPath] = (),
) -> CheckReport:
    """Looks for damage on a device, also on one too damaged to be opened. Writes nothing.

    Damage is not an exception but a finding. `force` looks although another process may write to the device.
    """
    found = _uext4.check(device, threads, per_kind, force, list(journals))
    return check_report(found)
