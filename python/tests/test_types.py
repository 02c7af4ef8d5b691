"""The types that the package states are those that it has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import uext4

PACKAGE = Path(uext4.__file__).parent


def run(*words: str) -> None:
    """Runs a tool beside the tests, with the settings of the project."""
    settings = str(Path(__file__).parent.parent / "pyproject.toml")
    environment = {**os.environ, "MYPY_CACHE_DIR": os.environ.get("MYPY_CACHE_DIR", os.devnull)}
    done = subprocess.run(
        [sys.executable, "-m", *words, settings], capture_output=True, text=True, env=environment, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
    run("mypy", "--strict", "-p", "uext4", "--config-file")


def test_the_stubs_of_the_native_half_are_true(tmp_path: Path) -> None:
    # Python 3.11 has the buffer protocol without a method of its name.
    excused = tmp_path / "excused"
    excused.write_text("uext4._uext4.Buffer.__buffer__")
    allow = ["--allowlist", str(excused), "--ignore-unused-allowlist"]
    run("mypy.stubtest", "uext4._uext4", *allow, "--mypy-config-file")


def test_programs_that_use_it_are_checked(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import uext4
with uext4.open("disk.img", read_only=True) as volume:
    size: int = volume.path("a").stat().st_size
    with volume.open_raw("a") as file:
        count: int = file.preadinto(bytearray(10), 0)
        file.pread("10", 0)
"""
    )
    environment = {**os.environ, "MYPY_CACHE_DIR": os.devnull}
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
    assert done.stdout.count("error:") == 1 and "arg-type" in done.stdout, done.stdout + done.stderr
