"""Peer of R3: Ray Data with its checkpoint, which skips rows whose ids are in the checkpoint."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.r1_marks import BEGIN, END, mark
from benchmarks.r3_input import FILES, airports_in, parquet_in
from benchmarks.r3_score import BATCH_ROWS, score_batch


def main(files: str, output: str, checkpoint: str, marks: str) -> None:
    """
    Add the score to the flights that are not in the checkpoint.

    :param files: Folder with the input.
    :param output: Folder for the output.
    :param checkpoint: Folder for the checkpoint.
    :param marks: File for the progress.
    """
    mark(marks, BEGIN)
    import ray  # type: ignore[import-not-found]
    from ray.data.checkpoint import CheckpointConfig  # type: ignore[import-not-found]

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    context: Any = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig(id_column="id", checkpoint_path=checkpoint)
    context.enable_progress_bars = False
    # The newer reader ignores the number of blocks and puts up to 128 MB of input into one task and one checkpoint.
    context.use_datasource_v2 = False
    scored = ray.data.read_parquet(parquet_in(Path(files)), override_num_blocks=FILES).map_batches(
        partial(score_batch, airports_in(Path(files)), marks), batch_format="pandas", batch_size=BATCH_ROWS
    )
    scored.write_parquet(output)
    mark(marks, END)


if __name__ == "__main__":
    main(*sys.argv[1:])
