"""Progress of steps in parts survives a checkpoint."""

from __future__ import annotations

import json

from airflow_provider_statecheck.state.progress import BadPart, PartedStep, PartProgress

STEP = ((("days", "2026-01-01"),), "scored")
LISTED = {"format": 1, "listing": {"names": b"x\x9c\x00", "sizes": b""}, "progress": {"finished": []}}


def parted() -> PartedStep:
    start = PartedStep(fingerprint="f", listed=LISTED, bad=(BadPart(("a.parquet (rows 0 to 9)",), "ValueError: no"),))
    return start.with_part(1, [[0, 10]], 0.25).with_part(3, [[1, 20, 0, 2, 4]], 0.75)


def test_progress_is_equal_after_a_round_trip_through_json():
    progress = PartProgress()
    progress.record(STEP, parted())
    restored = PartProgress(json.loads(json.dumps(progress.encode())))
    assert restored.find(STEP) == parted()
    assert restored.encode() == progress.encode()


def test_parts_without_a_snapshot_are_not_finished():
    limited = parted().limited_to({3, 4})
    assert dict(limited.finished) == {3: [[1, 20, 0, 2, 4]]}
    assert limited.last_number == 3
    assert limited.limited_to(()).last_number == 0


def test_steps_are_dropped_with_their_item_and_when_they_are_not_used():
    progress = PartProgress()
    progress.record(STEP, parted())
    progress.record(((), "other"), parted())
    progress.drop_scope((("days", "2026-01-01"),))
    assert progress.find(STEP) is None
    progress.keep({((), "another")})
    assert progress.encode() == []
