"""The wheel alone, in a virtual environment that has nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

PROGRAM = """
import uext4
uext4.mkfs("disk.img", 16 << 20)
with uext4.open("disk.img") as volume:
    (volume.root / "file").write_text("in a bare environment")
    print((volume.root / "file").read_text(), uext4.check.__name__, uext4.__version__)
assert uext4.check("disk.img").clean
try:
    import uext4.fsspec
except ModuleNotFoundError as error:
    print(error.name)
"""


@pytest.fixture
def wheel() -> Path:
    if "UEXT4_WHEEL" not in os.environ:
        pytest.skip("needs UEXT4_WHEEL, which scripts/python.sh sets")
    return Path(os.environ["UEXT4_WHEEL"])


def test_it_works_alone(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", wheel]
    subprocess.run(install, check=True)
    done = subprocess.run([python, "-c", PROGRAM], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("in a bare environment check 0.")
    assert done.stdout.splitlines()[1] == "fsspec"


def test_it_is_for_every_python_since_3_11(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "ext4=uext4.fsspec:Ext4FileSystem" in archive.read(entry_points).decode().replace(" ", "")
    assert {"uext4/py.typed", "uext4/_uext4.pyi", "uext4/_uext4.abi3.so"} <= set(names)
    assert sys.version_info >= (3, 11)
