"""State with right checksums and values of any type is corrupt, incompatible or unsupported, and nothing else."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, OperatorState
from airflow_provider_statecheck.exceptions import CorruptStateError, StateCheckError
from airflow_provider_statecheck.spark.connectors.enumerator import decode_source_state, state_after
from airflow_provider_statecheck.spark.stages.stage_state import driver_state
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.progress import (
    BadPart,
    ItemBasis,
    Iteration,
    Iterations,
    LoopProgress,
    PartedStep,
    PartProgress,
)
from airflow_provider_statecheck.state.reading.checkpoint_contents import CheckpointContents, source_ledger, summary_of
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates, RunValues, json_of
from airflow_provider_statecheck.state.reading.snapshot_reader import dataframe_columns
from airflow_provider_statecheck.state.schema_evolution import decode_schemas, encode_schemas, verdicts
from airflow_provider_statecheck.state.serializers.resolve import restored_serializer
from airflow_provider_statecheck.state.serializers.serializer import describe
from airflow_provider_statecheck.state.source_items import Item, Ledger, pack_items
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.stored_json import decode_state, encode_state
from tests.hostile.odd_values import changed, places
from tests.seeds import named_in_failure, new_seeds
from tests.written_snapshots import spark_schema
from tests.written_state import BACKENDS, StatefulJob

ITEMS = [Item.of(name, 10, 1) for name in ("b", "a", "c")]
DESCRIPTORS = (
    ValueStateDescriptor("total", int, queryable_name="totals"),
    MapStateDescriptor("amounts", str, dict[str, int]),
    ListStateDescriptor("seen", tuple[int, str]),
)


def _values() -> dict[str, Any]:
    loops, iterations = LoopProgress(), Iterations()
    basis = ItemBasis(run="r", version="1", code="c", fingerprint="f", before=(("a", "b"),))
    for item in ("c", "a", "b"):
        loops.finish(((), "days"), item, 1.0, basis)
    loops.finish(((("days", "d"),), "hours"), "7")
    iterations.record(((), "ranks"), Iteration(4, is_converged=True))
    step = PartedStep(fingerprint="f", listed=_source(), finished={1: [[0, 1]], 2: [[1, 5, 0, 1, 2]]}, share=0.5)
    parts = PartProgress([[[], "scored", _encoded(replace(step, bad=(BadPart(("a",), "failed"),)))]])
    return {
        "values": encode_state({"cursor": 7, "times": {("a", 1): {2.5, 3}}}),
        "loops": loops.encode(),
        "bases": loops.encode_bases(),
        "iterations": iterations.encode(),
        "parts": parts.encode(),
        "stage": {
            "checkpoint": 1,
            "run": "r",
            "now_ms": 1,
            "cost_seconds": 1.0,
            "run_seconds": 2.0,
            "columns": {"a": "b"},
        },
    }


def _encoded(step: PartedStep) -> Any:
    progress = PartProgress()
    progress.record(((), "x"), step)
    return progress.encode()[0][-1]


def _source() -> dict[str, Any]:
    ledger = Ledger(tuple(ITEMS)).finish_items([0]).finish_groups(1, 0, 1, count=3, size_bytes=3)
    listing = {"format": 1, "listing": pack_items(ITEMS), "progress": ledger.progress_state()}
    return listing | {"increments": 3, "target_bytes": 100, "reader": {"schema": "x"}}


def _read_values(values: Any) -> None:
    """Read values as a driver, a command and a server do."""
    decode_state(values.get("values"))
    loops = LoopProgress(values.get("loops", ()), values.get("bases", ()))
    iterations, parts = Iterations(values.get("iterations", ())), PartProgress(values.get("parts", ()))
    for each in (loops.encode, loops.encode_bases, iterations.encode, parts.encode):
        each()
    for step in ((), "scored"), ((), "days"):
        known = parts.find(step)
        if known is not None:
            state_after(known.listed, known.finished.values())
    RunValues.of(values)


def _read_source(source: Any) -> None:
    state = decode_source_state(decode_state(source))
    for ledger in (state.ledger,):
        assert len(ledger.finished_names) <= len(ITEMS)
        ledger.progress_state()
    state_after(decode_state(source), [[[0, 1]]])


def _read_schemas(encoded: Any) -> None:
    schemas = decode_schemas(encoded)
    for state in (*schemas.keyed, *schemas.operator):
        for each in filter(None, (state.key, state.value)):
            describe(each)
            try:
                restored_serializer(each)
            except StateCheckError:
                continue
    verdicts(schemas, decode_schemas(_schemas()))
    verdicts(decode_schemas(_schemas()), schemas)


def _schemas() -> Any:
    job = StatefulJob(CheckpointStorage.open("memory://schemas"), None, DESCRIPTORS)
    return json_of(json.dumps(encode_schemas(job.schemas())).encode())


def _read_columns(schema: Any) -> None:
    for column in dataframe_columns(json.dumps(schema)):
        assert column.type_name
        assert column.has_times in (True, False)


class Kind(NamedTuple):
    """State of one kind: a valid one, and what reads it."""

    valid: Callable[[], Any]
    read: Callable[[Any], None]


KINDS = {
    "values": Kind(_values, _read_values),
    "source": Kind(lambda: encode_state(_source()), _read_source),
    "schemas": Kind(_schemas, _read_schemas),
    "columns": Kind(
        lambda: json.loads(spark_schema({"n": "long", "t": "timestamp", "x": "decimal(3,1)"})), _read_columns
    ),
}


def _try_seeds(kind: str, seeds: Any) -> None:
    valid, read = KINDS[kind]
    original = valid()
    read(original)
    for seed in seeds:
        rng = random.Random(seed)
        odd = changed(original, rng)
        with named_in_failure(seed, [repr(odd)[:2000]]), suppress(StateCheckError):
            read(odd)


@pytest.mark.parametrize("kind", KINDS)
def test_odd_state_raises_errors_of_this_package_only(kind):
    _try_seeds(kind, range(300))


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_odd_state_raises_errors_of_this_package_only_for_long(kind):
    _try_seeds(kind, new_seeds(seconds=60))


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_in_state_is_imported(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_code.py").write_text("class Run: pass")
    monkeypatch.syspath_prepend(tmp_path)
    valid, read = KINDS[kind]
    original = valid()
    texts = [at for at, (holder, key) in enumerate(places(original)) if isinstance(holder[key], str)]
    assert texts
    for at, name in product(texts, ("planted_code.Run", "planted_code:Run", "planted_code")):
        copy = json.loads(json.dumps(original))
        holder, key = list(places(copy))[at]
        holder[key] = name
        with suppress(StateCheckError):
            read(copy)
    assert "planted_code" not in sys.modules


@pytest.fixture(scope="module")
def pointer(tmp_path_factory: pytest.TempPathFactory) -> tuple[StatefulJob, OperatorState]:
    folder = tmp_path_factory.mktemp("state")
    job = StatefulJob(CheckpointStorage.open(folder.as_uri()), BACKENDS["arrow"](), DESCRIPTORS)
    job.open(2)
    job.state("ann", "total").update(1)
    job.state("ann", "amounts").put("x", {"y": 1})
    operator = job.operator()
    job.close()
    return job, operator


def _listed(job: StatefulJob, *operators: OperatorState, **values: Any) -> None:
    """List a checkpoint as the pages, the commands and the API do."""
    found = CheckpointContents(CheckpointStates.load(job.publish(*operators, **values)))
    found.listing()
    document = found.checkpoint.document
    summary_of(document)
    with suppress(StateCheckError):
        source_ledger(found.checkpoint.storage, document)
    for name in ("total", "amounts", "seen", "nothing"):
        with suppress(StateCheckError):
            found.checkpoint.content(name)


def test_odd_state_ends_no_listing_with_an_error_of_another_kind(pointer):
    job, operator = pointer
    for seed in range(60):
        rng = random.Random(seed)
        schemas, source, values = (
            changed(_schemas(), rng),
            changed(encode_state(_source()), rng),
            changed(_values(), rng),
        )
        # Numbers above 64 bits make the whole metadata unreadable.
        with named_in_failure(seed, [repr((schemas, source, values))[:3000]]):
            odd = replace(operator, coordinator_state=ByteStreamStateHandle("odd", json.dumps(schemas).encode()))
            ledger = replace(
                driver_state("stage/source", 1),
                coordinator_state=ByteStreamStateHandle("odd", json.dumps(source).encode()),
            )
            with suppress(StateCheckError):
                _listed(job, odd, ledger, **(values if isinstance(values, dict) else {}))


@pytest.mark.parametrize(
    "bad",
    [{"$dict": [[[], 1]]}, {"$set": [{"$set": [1]}]}, {"$datetime": ["2026-01-01", 0, {"zone": "Europe"}]}, {"$a": 1}],
)
def test_odd_values_are_corrupt(bad):
    with pytest.raises(CorruptStateError):
        decode_state(bad)
