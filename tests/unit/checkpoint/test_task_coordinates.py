"""Coordinates of tasks: fields in the code, pairs of names and values in rows and messages."""

from __future__ import annotations

import json

import pytest

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, TaskCoordinates
from airflow_provider_statecheck.metadata.record_rows import json_reader
from airflow_provider_statecheck.metadata.tables import Caller
from tests.messages import make_owner

STORED = '[["dag_id", "nightly"], ["run_id", "day 1"], ["task_id", "load"], ["map_index", "2"]]'
TASK = TaskCoordinates("nightly", "day 1", "load", 2)


def test_rows_and_messages_have_pairs_as_those_of_earlier_versions_do() -> None:
    owner = make_owner(airflow=TASK.pairs)
    form = json.loads(json.dumps(encode(owner)))
    assert form["airflow"] == json.loads(STORED)
    assert decode(AttemptOwner, form).task == TASK
    assert json_reader(AttemptOwner)(form).task == TASK


def test_a_task_that_is_not_mapped_has_the_index_of_airflow() -> None:
    assert TaskCoordinates("nightly", "day 1", "load").pairs[-1] == ("map_index", "-1")
    assert TaskCoordinates.of(TASK.pairs[:3]) == TASK._replace(map_index=-1)


def test_outside_airflow_there_is_no_task() -> None:
    assert (make_owner().task, make_owner().dag_id) == (None, None)
    assert TaskCoordinates.of(TASK.pairs[:2]) is None
    assert encode(make_owner())["airflow"] == []


def test_the_caller_of_a_token_is_the_task_that_owns_its_attempt() -> None:
    assert Caller.of(TASK).coordinates == TASK


@pytest.mark.parametrize(
    "pairs",
    [STORED.replace("dag_id", "dag"), STORED.replace('"2"', '"-2"'), STORED.replace(', ["map_index", "2"]', "")],
)
def test_a_row_with_coordinates_of_another_form_is_not_read(pairs: str) -> None:
    form = encode(make_owner()) | {"airflow": json.loads(pairs)}
    with pytest.raises(ValueError, match="another form"):
        json_reader(AttemptOwner)(form)
