"""What state says does not depend on how many subtasks there are."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeyField
from tests.soak import rest_in_soak
from tests.spark.stages.functions import RunningBalance
from tests.spark.stages.stage_tries import StageTries
from tests.spark.stages.test_stage import by_row, payments, running_stage
from tests.state_content import StateContent, values_and_maps

ACCOUNT = KeyField("account", pa.string())
READ = values_and_maps(ValueStateDescriptor("balance", int, 0), MapStateDescriptor("purposes", str, int))


def expected(parts: list[dict[str, list[Any]]]) -> dict[str, tuple[int, dict[str, int]]]:
    """Return the balance of each account, and how often each purpose was."""
    balances: defaultdict[str, int] = defaultdict(int)
    purposes: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in by_row(parts):
        balances[row["account"]] += row["amount"]
        purposes[row["account"]][row["purpose"]] += 1
    return {account: (balance, dict(purposes[account])) for account, balance in balances.items()}


@pytest.mark.parametrize("backend", rest_in_soak(["arrow", "filesystem", "hashmap"], "arrow"))
def test_state_written_by_two_subtasks_says_the_same_to_one_three_and_seven(tries: StageTries, backend: str) -> None:
    parts = payments()
    tries.write_input(*parts)
    tries.run(running_stage(tries, RunningBalance(), parallelism=2, state_backend=backend))
    written = next(state for state in tries.document().operator_states if state.uid == "stage/balance")
    assert (written.parallelism, len(written.subtask_states)) == (2, 2)
    content = StateContent(storage=tries.storage, checkpoint=tries.completed()[-1], backend=backend)
    for parallelism in (2, 1, 3, 7):
        assert content.read("stage/balance", ACCOUNT, parallelism, READ) == expected(parts)
