"""The end of the input of a stage, as its functions are told of it in each subtask."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.stages.stage import Stage
from tests.messages import make_owner
from tests.soak import rest_in_soak
from tests.spark.stages.stage_tries import StageTries

PAGE = Path(__file__).parents[3] / "docs" / "use" / "state.md"
ROWS = {1: (0, 7), 2: (7, 1), 3: (8, 0), 4: (8, 5)}
"""First number and number of rows of each split; four partitions have those of the first one."""


def function_of_the_page() -> Any:
    """Return the function with a buffer that the page shows, as a task gets it from a Dag file."""
    (block,) = re.findall(
        r"```python\n(from typing import NamedTuple.*?class InPairs.*?)\n\n\n", PAGE.read_text(), re.DOTALL
    )
    namespace: dict[str, Any] = {"__name__": "page_of_state"}
    exec(f"from airflow_provider_statecheck import ListStateDescriptor\n{block}", namespace)
    return namespace["InPairs"]()


def load_numbers(spark: Any, split: int) -> Any:
    first, count = ROWS[split]
    return spark.range(first, first + count, 1, 4 if split == 1 else 1)


def run_splits(tries: StageTries, splits: list[int], run_key: str) -> None:
    stage = Stage("stage", parallelism=3).source(DataFrameSource(splits, load_numbers))
    stage = stage.map(function_of_the_page(), output="a bigint, b bigint").sink(ParquetSink(str(tries.output)))
    tries.run(stage, owner=make_owner(run_key=run_key))


def emitted(tries: StageTries) -> list[int]:
    return sorted(number for row in tries.rows() for number in row.values() if number is not None)


@pytest.mark.parametrize("splits", rest_in_soak([[1, 2, 3], [1, 2], [1]], [1, 2, 3]))
def test_function_of_the_page_emits_all_elements_of_each_run(tries: StageTries, splits: list[int]) -> None:
    run_splits(tries, splits, "2026-01-01")
    expected = sum(ROWS[split][1] for split in splits)
    assert emitted(tries) == list(range(expected))
    # The buffers were emitted with the checkpoint at the end, so that the next run begins without them.
    run_splits(tries, [*splits, 4], "2026-01-02")
    assert emitted(tries) == [*range(expected), *range(8, 13)]
