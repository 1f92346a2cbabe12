"""
Peer of R3: Daft with its checkpoint, which skips rows whose keys are in the checkpoint and commits to Iceberg once.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.r1_marks import BEGIN, END, mark
from benchmarks.r3_input import airports_in, parquet_in
from benchmarks.r3_score import BATCH_ROWS, SCORE, scores

TABLE = "r3.scored"
_CATALOG = "catalog.db"


def main(files: str, output: str, checkpoint: str, marks: str) -> None:
    """
    Add the score to the flights that are not in the checkpoint.

    :param files: Folder with the input.
    :param output: Folder for the output, a table of Iceberg.
    :param checkpoint: Folder for the checkpoint.
    :param marks: File for the progress.
    """
    mark(marks, BEGIN)
    import daft  # type: ignore[import-not-found]
    import ray  # type: ignore[import-not-found]

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    daft.set_runner_ray()  # the only runner with checkpoints
    store = daft.CheckpointStore(f"file://{checkpoint}")
    frame = daft.read_parquet(
        f"{parquet_in(Path(files))}/*.parquet", checkpoint=daft.CheckpointConfig(store=store, on="id")
    )
    score = daft.func.batch(return_dtype=daft.DataType.float64(), batch_size=BATCH_ROWS)(
        partial(_scores, airports_in(Path(files)), marks)
    )
    columns = (frame[name] for name in ("id", "latitude", "longitude", "delay"))
    scored = frame.with_column(SCORE, score(*columns))
    commit = daft.IdempotentCommit(store=store, idempotence_key="r3")
    scored.write_iceberg(_table(Path(output), scored.schema().to_pyarrow_schema()), checkpoint=commit)
    mark(marks, END)


def _scores(airports: str, marks: str, *columns: Any) -> Any:
    import pyarrow as pa

    return pa.array(scores(airports, marks, *(column.to_arrow().to_numpy(zero_copy_only=False) for column in columns)))


def _table(folder: Path, schema: Any) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / _CATALOG).touch()
    catalog = catalog_in(folder)
    catalog.create_namespace_if_not_exists(TABLE.partition(".")[0])
    return catalog.create_table_if_not_exists(TABLE, schema=schema)


def catalog_in(folder: Path) -> Any:
    """Return the catalog in the folder of an output, ``None`` if it has none."""
    from pyiceberg.catalog.sql import SqlCatalog

    file = folder / _CATALOG
    if not file.exists():
        return None
    return SqlCatalog("r3", uri=f"sqlite:///{file}", warehouse=folder.as_uri(), schema_version="v1")


if __name__ == "__main__":
    main(*sys.argv[1:])
