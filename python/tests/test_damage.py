"""Damaged volumes: every failure is an exception that programs expect, and none ends the interpreter."""

from __future__ import annotations

import random
from pathlib import Path

import uext4

ROUNDS = 60
UUID = "01234567-89ab-4def-8123-456789abcdef"


def look_at_everything(image: Path) -> int:
    """Uses whatever can be used. Returns how many failures there were."""
    failures = 0
    try:
        volume = uext4.open(image, read_only=True)
    except OSError:
        return 1
    with volume:
        volume.info()
        try:
            walk = volume.walk("/")
        except OSError:
            return 1
        while True:
            try:
                entry = next(walk)
            except StopIteration:
                break
            except OSError as error:
                assert error.errno and error.filename
                failures += 1
                continue
            path = volume.path(entry.path)
            for use in (
                path.lstat,
                lambda: path.list_xattrs(follow_symlinks=False),
                lambda: list(path.iterdir()) if entry.is_dir() else None,
                lambda: path.readlink() if entry.is_symlink() else None,
                lambda: volume.open_raw(path).pread(1 << 16, 0) if entry.is_file() else None,
                lambda: volume.open_raw(path).map() if entry.is_file() else None,
            ):
                try:
                    use()
                except OSError as error:
                    assert error.errno
                    failures += 1
        try:
            volume.statfs()
        except OSError:
            failures += 1
    return failures


def test_every_failure_is_an_exception(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    for number in range(40):
        (tree / "a" / f"file-{number}").write_bytes(bytes(number * 500))
    (tree / "link").symlink_to("a/b")
    (tree / "long").symlink_to("x" * 200)
    whole = tmp_path / "whole.img"
    uext4.mkfs(whole, "auto", tree=tree, block_size=1024, features="^metadata_csum", uuid=UUID, time=1)
    clean = whole.read_bytes()
    assert look_at_everything(whole) == 0
    rng = random.Random(5)
    damaged = tmp_path / "damaged.img"
    failures = 0
    for _ in range(ROUNDS):
        data = bytearray(clean)
        for _ in range(rng.randrange(40, 400)):
            # Metadata is in front, behind the superblock and the group descriptors.
            data[rng.randrange(3072, min(len(data), 96 << 10))] = rng.randrange(256)
        damaged.write_bytes(data)
        failures += look_at_everything(damaged)
        try:
            uext4.check(damaged)
        except OSError:
            failures += 1
    assert failures > ROUNDS
