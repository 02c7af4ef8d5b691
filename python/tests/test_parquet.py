"""pandas, pyarrow and DuckDB read Parquet out of a volume, and write it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import fsspec
import numpy
import pandas
import pyarrow.dataset
import pytest
import uext4
from conftest import fsck
from uext4.fsspec import Ext4FileSystem

ROWS = 100_000


@pytest.fixture
def table() -> object:
    return pandas.DataFrame({"number": range(ROWS), "half": [n / 2 for n in range(ROWS)], "name": ["ä"] * ROWS})


@pytest.fixture
def url(image: Path, table: object) -> Iterator[str]:
    """A table in three files of a directory, written by pandas."""
    options = {"ext4": {"read_only": False}}
    for part in range(3):
        piece = table.iloc[part::3]  # type: ignore[attr-defined]
        piece.to_parquet(f"ext4://table/part-{part}.parquet::file://{image}", storage_options=options)
    yield f"ext4://table::file://{image}"
    for how in (options, {}):
        fsspec.core.url_to_fs(f"ext4://table::file://{image}", **how)[0].close()


def test_pandas(url: str, table: object) -> None:
    one = pandas.read_parquet(url.replace("table", "table/part-1.parquet"))
    assert one["number"].tolist() == list(range(1, ROWS, 3))
    assert one["half"].sum() == sum(n / 2 for n in range(1, ROWS, 3))


def test_pyarrow(image: Path, url: str) -> None:
    fs = Ext4FileSystem(image)
    dataset = pyarrow.dataset.dataset("/table", filesystem=fs, format="parquet")
    assert dataset.count_rows() == ROWS
    found = dataset.to_table(columns=["number"], filter=pyarrow.dataset.field("number") < 10)
    assert sorted(found["number"].to_pylist()) == list(range(10))
    fs.close()


def test_duckdb(image: Path, url: str) -> None:
    fs = Ext4FileSystem(image)
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        query = "select count(*), sum(number), max(name) from read_parquet('ext4://table/*.parquet')"
        assert connection.execute(query).fetchone() == (ROWS, sum(range(ROWS)), "ä")
        kept = connection.execute("select half from read_parquet('ext4://table/part-2.parquet') where number = 5")
        assert kept.fetchall() == [(2.5,)]
    fs.close()


def test_the_example(tmp_path: Path) -> None:
    example = Path(__file__).parent.parent / "examples" / "parquet.py"
    image = tmp_path / "disk.img"
    done = subprocess.run([sys.executable, str(example), str(image)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sums = [("Basel", 1498500), ("Bern", 1499500), ("Chur", 1500500)]
    assert done.stdout.splitlines() == ["pandas  4498500", "pyarrow 3000", f"duckdb  {sums}"]
    fsck(image)


def test_numpy_reads_into_arrays(image: Path) -> None:
    numbers = numpy.arange(1000, dtype="<f8").reshape(10, 100)
    with uext4.open(image) as volume, volume.open_raw("/numbers", "w+") as file:
        assert file.pwrite(numbers, 0) == numbers.nbytes
        into = numpy.zeros_like(numbers)
        assert file.preadinto(into, 0) == numbers.nbytes
        assert (into == numbers).all()
        with pytest.raises(BufferError):
            file.preadinto(into.T, 0)
        whole = uext4.Buffer(8192)
        file.preadinto(whole, 0)
        assert (numpy.frombuffer(whole, dtype="<f8", count=1000) == numbers.reshape(-1)).all()
