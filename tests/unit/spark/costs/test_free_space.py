from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from airflow_provider_statecheck.exceptions import StorageError, UnsupportedStateError
from airflow_provider_statecheck.spark.costs.stage_costs import (
    UNKNOWN_SIZE_BYTES,
    full_disk_named,
    require_room,
    shortage_of,
)


@dataclass
class Disk:
    """A storage that knows how much is free."""

    free: int | None
    base_uri: str = "file:///checkpoints"

    def free_bytes(self) -> int | None:
        return self.free


def test_a_step_that_will_not_fit_is_refused_with_both_numbers():
    with pytest.raises(
        StorageError, match=r"at least 500 free bytes .* step rows .* found 499 bytes in file:///checkpoints"
    ):
        require_room(Disk(499), "rows", 500)


def test_a_step_of_unknown_size_needs_a_floor():
    require_room(Disk(UNKNOWN_SIZE_BYTES), "rows", None)
    with pytest.raises(StorageError, match="the minimum for an unknown size"):
        require_room(Disk(UNKNOWN_SIZE_BYTES - 1), "rows", None)


def test_a_small_step_of_known_size_needs_no_floor():
    assert shortage_of(Disk(1000), "rows", 999) is None


def test_a_disk_that_is_nearly_full_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        require_room(Disk(2 * UNKNOWN_SIZE_BYTES), "rows", None)
        assert caplog.records == []
        require_room(Disk(2 * UNKNOWN_SIZE_BYTES - 1), "rows", 10)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"Only {2 * UNKNOWN_SIZE_BYTES - 1} bytes are free")


def test_a_storage_that_cannot_tell_refuses_nothing():
    require_room(Disk(None), "rows", 10**18)


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        RuntimeError("Caused by: java.io.IOException: Disk quota exceeded\n at x"),
    ],
    ids=["space", "quota"],
)
def test_a_full_disk_is_named_without_the_trace_of_a_jvm(error):
    with (
        pytest.raises(StorageError, match="no space left on device, in file:///c") as raised,
        full_disk_named("file:///c"),
    ):
        raise error
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_full_disk_is_found_below_another_error():
    with pytest.raises(StorageError, match="no space left"), full_disk_named("file:///c"):
        raise RuntimeError("Job aborted.") from OSError(28, "No space left on device")


@pytest.mark.parametrize("error", [ValueError("no"), UnsupportedStateError("No space left on device")])
def test_any_other_error_stays_what_it_is(error):
    with pytest.raises(type(error)) as raised, full_disk_named("file:///c"):
        raise error
    assert raised.value is error
