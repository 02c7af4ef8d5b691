"""mkfs, check, explain and facts."""

from __future__ import annotations

import dataclasses
import errno
import subprocess
import tarfile
import uuid
from pathlib import Path

import pytest
import uext4
from conftest import fsck, tool

UUID = "01234567-89ab-4def-8123-456789abcdef"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    source = tmp_path / "tree"
    (source / "directory").mkdir(parents=True)
    (source / "directory" / "file").write_bytes(b"contents" * 1000)
    (source / "link").symlink_to("directory/file")
    return source


def test_a_new_image(tmp_path: Path) -> None:
    made = uext4.mkfs(tmp_path / "a.img", 32 << 20, label="näme", block_size=4096, inode_size=512, uuid=UUID)
    assert (made.size, made.block_size, made.inode_size, made.uuid) == (32 << 20, 4096, 512, UUID)
    assert "metadata_csum" in made.features and made.journal_blocks > 0 and not made.too_small_for_journal
    fsck(tmp_path / "a.img")
    with uext4.open(tmp_path / "a.img", read_only=True) as volume:
        info = volume.info()
        assert (info.label, info.uuid, info.block_size, info.features) == ("näme", UUID, 4096, made.features)
    with pytest.raises(FileExistsError):
        uext4.mkfs(tmp_path / "a.img")
    assert uext4.mkfs(tmp_path / "a.img", force=True, type="ext2", features=["^resize_inode"]).journal_blocks == 0
    fsck(tmp_path / "a.img")


def test_a_tree_and_the_smallest_size(tmp_path: Path, tree: Path) -> None:
    made = uext4.mkfs(tmp_path / "a.img", "auto", tree=tree, owner=(5, 6))
    assert made.size == (tmp_path / "a.img").stat().st_size < 1 << 20
    fsck(tmp_path / "a.img")
    with uext4.open(tmp_path / "a.img", read_only=True) as volume:
        assert volume.path("link").read_bytes() == b"contents" * 1000
        assert (volume.path("link").lstat().st_uid, volume.path("link").lstat().st_gid) == (5, 6)
    roomy = uext4.mkfs(tmp_path / "b.img", "auto", tree=[tree], free=1 << 20)
    assert roomy.free_blocks * roomy.block_size >= 1 << 20
    with pytest.raises(ValueError):
        uext4.mkfs(tmp_path / "c.img", "auto")
    assert not (tmp_path / "c.img").exists()


def test_layers(tmp_path: Path, tree: Path) -> None:
    upper = tmp_path / "upper"
    (upper / "directory").mkdir(parents=True)
    (upper / "directory" / ".wh.file").touch()
    (upper / "new").write_text("new")
    with tarfile.open(tmp_path / "upper.tar", "w") as archive:
        archive.add(upper, ".")
    uext4.mkfs(tmp_path / "a.img", 8 << 20, tree=[tree, tmp_path / "upper.tar"])
    with uext4.open(tmp_path / "a.img", read_only=True) as volume:
        assert volume.path("new").read_text() == "new"
        assert list(volume.path("directory").iterdir()) == []


def test_the_same_inputs_make_the_same_volume(tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.img", "b.img"):
        uext4.mkfs(tmp_path / name, "auto", tree=tree, uuid=uuid.UUID(UUID), time=1_700_000_000)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    uext4.mkfs(tmp_path / "c.img", "auto", tree=tree, uuid=UUID)
    images = [(tmp_path / name).read_bytes() for name in ("a.img", "b.img", "c.img")]
    assert images[0] == images[1] == images[2]
    # That of the command `uext4 mkfs -U`.
    seen = subprocess.run([tool("dumpe2fs"), "-h", tmp_path / "a.img"], capture_output=True, text=True).stdout
    seed = next(line.split()[-1] for line in seen.splitlines() if line.startswith("Directory Hash Seed"))
    assert seed == "b6a0c0f1-93e8-80f2-a9b1-a5f85dac4f64"


def test_what_is_refused(tmp_path: Path, tree: Path, image: Path) -> None:
    with pytest.raises(ValueError, match="no_such"):
        uext4.mkfs(tmp_path / "a.img", 8 << 20, features="no_such")
    with pytest.raises(ValueError):
        uext4.mkfs(tmp_path / "a.img", 8 << 20, type="ext5")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        uext4.mkfs(tmp_path / "a.img", 8 << 20, tree=tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        uext4.mkfs(tmp_path / "a.img")
    (tmp_path / "noise").write_bytes(b"no archive" * 1000)
    with pytest.raises(OSError, match="noise"):
        uext4.mkfs(tmp_path / "a.img", 1 << 20, tree=tmp_path / "noise")
    assert not (tmp_path / "a.img").exists()
    with uext4.open(image), pytest.raises(OSError) as caught:
        uext4.mkfs(image, force=True)
    assert caught.value.errno == errno.EBUSY
    dry = uext4.mkfs(tmp_path / "a.img", 8 << 20, tree=tree, dry_run=True)
    assert dry.size == 8 << 20 and not (tmp_path / "a.img").exists()
    with pytest.raises(OSError) as caught:
        uext4.mkfs(tmp_path / "a.img", 128 << 10, tree=tree, label="too small", inodes=8192)
    assert not (tmp_path / "a.img").exists()


def test_a_check(image: Path, volume: uext4.Volume) -> None:
    (volume.root / "directory").mkdir()
    (volume.root / "file").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="read-only"):
        volume.check()
    volume.close()
    report = uext4.check(image)
    assert report.clean and report.findings == []
    assert (report.counts.files, report.counts.directories) == (1, 3)
    assert report == uext4.check(str(image), threads=1)
    with uext4.open(image, read_only=True) as reader:
        assert reader.check(threads=2) == report


def test_a_check_of_damage(tmp_path: Path) -> None:
    image = tmp_path / "damaged.img"
    uext4.mkfs(image, 16 << 20)
    bitmap = subprocess.run([tool("dumpe2fs"), image], capture_output=True, text=True).stdout
    block = int(bitmap.split("Block bitmap at ")[1].split()[0])
    with image.open("r+b") as file:
        file.seek(block * 1024)
        file.write(b"\xff" * 16 + b"\0" * 16)
    report = uext4.check(image, per_kind=1)
    assert not report.clean
    finding = next(finding for finding in report.findings if finding.severity == "error")
    assert finding.code in report.totals and finding.group == 0 and "bitmap" in finding.code
    (tmp_path / "zeros.img").write_bytes(bytes(1 << 20))
    with pytest.raises(OSError):
        uext4.check(tmp_path / "zeros.img")


def test_an_explanation(volume: uext4.Volume) -> None:
    with volume.open_raw("/file", "w+") as file:
        file.pwrite(b"x" * 8192, 0)
        file.fsync()
        told = file.explain(0, 4096)
        assert (told.route, told.gate, told.refused) == ("simple-read", "shared", None)
        assert [(request.op, request.length) for request in told.requests] == [("read", 4096)]
        assert told.requests[0].pos == file.map()[0].physical
        told = file.explain(0, 4096, write=True, sync="data")
        assert told.route == "overwrite" and told.commits == 0 and told.durability != "none"
        told = file.explain(1 << 20, 4096, write=True)
        assert told.route == "allocate" and told.handles_before + told.handles_after > 0 and told.reasons
        with pytest.raises(ValueError):
            file.explain(0, 4096, sync="often")  # type: ignore[arg-type]
        with pytest.raises(OSError):
            file.explain(0, 0)


def test_facts_are_complete(volume: uext4.Volume) -> None:
    # A counter that the library gets is one of the dataclass.
    assert [field.name for field in dataclasses.fields(uext4.Stats)] == [*volume._native.stats()]
    assert [field.name for field in dataclasses.fields(uext4.Info)] == [*volume._native.info()]
    before = volume.stats()
    volume.path("file").write_bytes(b"x")
    volume.sync()
    assert (volume.stats() - before).commits >= 1
    space = volume.statfs()
    assert space.free > space.available > 0 and space.blocks + space.overhead == volume.info().blocks
    assert volume.info().device_size == 64 << 20 and volume.info().journal_blocks
    assert volume.alignment[0] == volume.info().logical_block
    volume.tick()
    with pytest.raises(dataclasses.FrozenInstanceError):
        space.free = 0  # type: ignore[misc]


def test_trim(volume: uext4.Volume) -> None:
    try:
        assert volume.trim() > 0
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
