"""Queryable names in checkpoints: they survive whatever happens to a state, and a new one changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.reading.checkpoint_states import (
    CheckpointStates,
    owned_handles,
    written_schemas,
)
from airflow_provider_statecheck.state.reading.state_reader import read_state
from airflow_provider_statecheck.state.writing.canonical import rescale_max_parallelism
from airflow_provider_statecheck.state.writing.write_savepoint import write_savepoint
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.written_state import BACKENDS, EACH_BACKEND, FUNCTION, STAGE, StatefulJob

NAMES = {"balance": "balances", "prices": "prices of shops", "internal": None}
KEYS = [f"account {n}" for n in range(40)]


def descriptors(names: dict[str, str | None] = NAMES) -> list[Any]:
    return [
        ValueStateDescriptor("balance", int, queryable_name=names["balance"]),
        MapStateDescriptor("prices", str, int, queryable_name=names["prices"]),
        ValueStateDescriptor("internal", int),
    ]


@pytest.fixture(params=EACH_BACKEND)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StatefulJob]:
    made = StatefulJob(CheckpointStorage.open(tmp_path.as_uri()), BACKENDS[request.param](), descriptors())
    made.open(2)
    for key in KEYS:
        made.state(key, "balance").update(1)
        made.state(key, "prices").put("tea", 1)
        made.state(key, "internal").update(1)
    yield made
    made.close()


def listed(states: CheckpointStates) -> dict[str, str | None]:
    """Return the names in the metadata of a checkpoint."""
    (function,) = states.functions()
    return {state.name: state.queryable_name for state in function.schemas.keyed}


def written(states: CheckpointStates) -> dict[str, str | None]:
    """Return the names in the state files of a checkpoint."""
    (function,) = states.functions()
    found = written_schemas(states.storage, owned_handles(function.operator))
    return {state.name: state.queryable_name for state in found.keyed}


def load(job: StatefulJob, pointer: str) -> CheckpointStates:
    return CheckpointStates.of(job.storage, pointer)


def test_names_are_in_the_metadata_and_in_the_state_files(job):
    states = load(job, job.save())

    assert listed(states) == written(states) == NAMES


def test_names_survive_a_restore_with_another_parallelism(job):
    before = job.operator()
    job.open(3, before)

    assert written(load(job, job.save())) == NAMES


def test_names_of_states_survive_a_stage_that_never_touches_them(job):
    before = job.operator()
    job.descriptors = [descriptors()[2]]
    for parallelism in (2, 3):
        job.open(parallelism, before)
        job.state("account 1", "internal").update(2)
        before = job.operator()

    assert written(load(job, job.publish(before))) == NAMES


def test_names_survive_another_maximum_parallelism(job):
    source = load(job, job.save()).document
    directory = f"{job.storage.base_uri}/savepoint-1"

    rescale_max_parallelism(job.storage, source, directory=directory, max_parallelism=64)

    states = load(job, directory)
    assert listed(states) == written(states) == NAMES


@pytest.mark.parametrize("given", ["balance", descriptors()[0]], ids=["by name", "by descriptor"])
def test_names_survive_an_edit_of_a_state(job, given):
    base = job.save()
    rows = read_state(base, "balance").read_all()

    edited = write_savepoint(
        rows, given, stage=STAGE, function=FUNCTION, target=f"{job.storage.base_uri}/savepoints", base=base
    )

    states = load(job, edited)
    assert listed(states) == written(states) == NAMES


def test_new_name_takes_effect_with_the_next_checkpoint_and_migrates_nothing(job):
    renamed = {"balance": "accounts", "prices": None, "internal": None}
    before = job.operator()
    base = files(load(job, job.publish(before)))
    job.descriptors = descriptors(renamed)
    job.open(2, before)
    job.state("account 1", "balance").update(2)

    states = load(job, job.save())

    assert listed(states) == written(states) == renamed
    assert files(states) >= base


def files(states: CheckpointStates) -> set[str]:
    """Return the files that later checkpoints share."""
    (function,) = states.functions()
    handles = owned_handles(function.operator)
    return {path for handle in handles for path, _ in handle.shared}
