"""What the logs of the drivers of a job say about work that was done again."""

from __future__ import annotations

from tests.services.lost_work import LostWork

PIECES = ["item a: 0 1.000", "item b: 0 2.000", "item b: 1 0.500", "item b: 0 3.000", "item b: 1 0.250"]


def test_time_of_pieces_that_another_driver_computed_again_is_lost() -> None:
    found = LostWork.of(["numbers", "item a", "item b", "item b"], PIECES)
    assert found == LostWork(again=("item b",), lost_seconds=2.5, work_seconds=4.25)


def test_nothing_is_lost_where_each_piece_was_computed_once() -> None:
    found = LostWork.of(["numbers", "item a", "item b"], PIECES[:3])
    assert found == LostWork(again=(), lost_seconds=0, work_seconds=3.5)
