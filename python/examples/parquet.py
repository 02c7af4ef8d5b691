"""Writes a table into a volume as Parquet, and reads it with pandas, pyarrow and DuckDB. No mount, no root.

    python parquet.py disk.img
"""

import os
import sys

import duckdb
import pandas
import pyarrow.dataset
import uext4
from uext4.fsspec import Ext4FileSystem


def main(image: str) -> None:
    if not os.path.exists(image):
        uext4.mkfs(image, 256 << 20)

    # pandas, by URL. The image is opened for writing only if that is asked for.
    url = f"ext4://tables/cities.parquet::file://{os.path.abspath(image)}"
    table = pandas.DataFrame({"city": ["Basel", "Bern", "Chur"] * 1000, "count": range(3000)})
    table.to_parquet(url, storage_options={"ext4": {"read_only": False}})
    print("pandas ", pandas.read_parquet(url)["count"].sum())

    # pyarrow and DuckDB take a file system.
    fs = Ext4FileSystem(image)
    dataset = pyarrow.dataset.dataset("/tables", filesystem=fs, format="parquet")
    print("pyarrow", dataset.count_rows())
    with duckdb.connect() as connection:
        connection.register_filesystem(fs)
        query = "select city, sum(count) from read_parquet('ext4://tables/*.parquet') group by city order by city"
        print("duckdb ", connection.execute(query).fetchall())
    fs.close()


if __name__ == "__main__":
    main(sys.argv[1])
