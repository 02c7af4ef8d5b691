"""Volumes to test on; judges; and skips that are failures where all is required (`UEXT4_REQUIRE=all`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
import uext4

SIZE = 64 << 20


def judge(report: pytest.TestReport | pytest.CollectReport, name: str) -> None:
    """Makes a skip a failure where all is required, or tells `make test` of it."""
    if report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if os.environ.get("UEXT4_REQUIRE") == "all":
        report.outcome = "failed"
        report.longrepr = f"skipped, although all is required: {reason}"
    elif log := os.environ.get("UEXT4_SKIP_LOG"):
        with open(log, "a") as file:
            file.write(f"SKIP python, {name}: {reason.removeprefix('Skipped: ')}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    judge(report, item.name)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    judge(report, collector.name)
    return report


def tool(name: str) -> str:
    """A program of the system; without it the test is skipped."""
    found = shutil.which(name, path=os.environ["PATH"] + ":/sbin:/usr/sbin")
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def fsck(image: os.PathLike[str] | str) -> None:
    """Fails unless e2fsck calls the volume clean."""
    done = subprocess.run([tool("e2fsck"), "-fn", image], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Path]:
    """The image of an empty volume, which is clean at the end of the test."""
    path = tmp_path / "disk.img"
    uext4.mkfs(path, SIZE)
    yield path
    fsck(path)


@pytest.fixture
def volume(image: Path) -> Iterator[uext4.Volume]:
    """That volume, open for writing."""
    with uext4.open(image) as volume:
        yield volume


@pytest.fixture
def image_of(tmp_path: Path) -> Callable[..., Path]:
    """Makes an image by mke2fs, with the files of a directory."""

    def make(source: Path | None = None, *options: str, size: str = "64m") -> Path:
        path = tmp_path / f"mke2fs-{len(list(tmp_path.iterdir()))}.img"
        files = ["-d", str(source)] if source else []
        command = [tool("mke2fs"), "-q", "-t", "ext4", *options, *files, str(path), size]
        subprocess.run(command, check=True, capture_output=True)
        return path

    return make
