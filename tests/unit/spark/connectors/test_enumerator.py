"""Increments of a source: their limits, their items and row groups, and their state."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError
from airflow_provider_statecheck.spark.connectors.enumerator import (
    ItemEnumerator,
    ItemReader,
    Limits,
    Piece,
    SourceState,
    decode_source_state,
    moved_pieces,
    parse_bytes_per_increment,
    parse_limits,
    plan,
    state_after,
)
from airflow_provider_statecheck.state.source_items import Intervals, Item, Ledger, Partial
from airflow_provider_statecheck.storage.stored_json import decode_state, encode_state
from tests.unit.spark.connectors.runs import increments_of, state_of

FILES = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), max_size=8)
LIMITS = st.builds(
    Limits,
    size_bytes=st.none() | st.integers(1, 80),
    items=st.none() | st.integers(1, 4),
    row_groups=st.none() | st.integers(1, 6),
)


def ledger_of(files):
    return Ledger(tuple(Item.of(f"f{i}", sum(groups), "") for i, groups in enumerate(files)))


def planned(files, limits, ledger=None):
    return list(plan(ledger or ledger_of(files), lambda: limits, lambda i: files[i]))


def read(files, pieces):
    return [(p.position, g) for p in pieces for g in range(*(p.groups or (0, len(files[p.position]))))]


@given(FILES, LIMITS)
def test_every_row_group_is_in_exactly_one_increment_and_in_order(files, limits):
    increments = planned(files, limits)
    found = [group for pieces in increments for group in read(files, pieces)]
    assert found == [(i, g) for i, groups in enumerate(files) for g in range(len(groups))]
    assert all(increments)


@given(FILES, LIMITS)
def test_an_increment_of_several_pieces_keeps_all_limits(files, limits):
    for pieces in planned(files, limits):
        groups = read(files, pieces)
        if len(groups) > 1 and len({position for position, _ in groups}) > 1:
            assert sum(p.size_bytes for p in pieces) <= (limits.size_bytes or 10**9)
            assert len({p.position for p in pieces}) <= (limits.items or 10**9)


@given(FILES, st.integers(1, 6))
def test_no_increment_has_more_row_groups_than_the_limit(files, most):
    assert all(len(read(files, pieces)) <= most for pieces in planned(files, Limits(row_groups=most)))


@given(FILES, LIMITS)
def test_the_sizes_of_pieces_are_those_of_what_they_read(files, limits):
    for pieces in planned(files, limits):
        assert sum(p.size_bytes for p in pieces) == sum(files[i][g] for i, g in read(files, pieces))


def test_a_file_of_up_to_two_increments_is_read_whole():
    assert planned([[10, 10]], Limits(size_bytes=10)) == [(Piece(0, 20),)]


def test_a_larger_file_is_cut_at_its_row_groups():
    assert planned([[10, 10, 5]], Limits(size_bytes=12)) == [
        (Piece(0, 10, (0, 1), 3),),
        (Piece(0, 10, (1, 2), 3),),
        (Piece(0, 5, (2, 3), 3),),
    ]


def test_row_groups_that_are_the_whole_file_are_a_whole_file():
    assert planned([[1, 1], [1, 1]], Limits(row_groups=2)) == [(Piece(0, 2),), (Piece(1, 2),)]


def test_a_file_that_cannot_be_cut_is_an_increment_of_its_own():
    ledger = ledger_of([[1], [50, 50], [1]])
    found = list(plan(ledger, lambda: Limits(size_bytes=10), lambda _: None))
    assert found == [(Piece(0, 1),), (Piece(1, 100),), (Piece(2, 1),)]


def test_footers_of_small_files_are_not_read():
    def refuse(position):
        raise AssertionError(position)

    assert len(list(plan(ledger_of([[5], [5], [5]]), lambda: Limits(size_bytes=10), refuse))) == 2


def test_the_rest_of_a_file_that_cannot_be_cut_any_more_is_refused():
    ledger = Ledger(ledger_of([[1, 1]]).items, partial={0: Partial(Intervals.of([0]), 1)})
    with pytest.raises(InvalidConfigurationError, match="rest of f0"):
        list(plan(ledger, Limits, lambda _: None))


def test_ten_thousand_small_files_are_planned_without_looking_at_each_many_times():
    files = [[1]] * 10_000
    assert [len(pieces) for pieces in planned(files, Limits(size_bytes=10_000))] == [10_000]


class RowGroupsRead(ItemReader):
    """Reads row groups as pairs of numbers."""

    def __init__(self, files):
        self.files = files
        self.looked_at = []

    def require_unchanged(self, items):
        self.looked_at += [item.name for item in items]

    def load(self, splits):
        pairs = ((int(s.item.name), s.groups or (0, len(self.files[int(s.item.name)]))) for s in splits)
        return [(position, group) for position, groups in pairs for group in range(*groups)]

    def row_groups(self, item):
        return self.files[int(item.name)]

    def snapshot(self):
        return {"kept": "value"}


def enumerator_of(files, limits, restored=None):
    items = tuple(Item.of(str(i), sum(groups), "") for i, groups in enumerate(files))
    state = SourceState(Ledger(items)) if restored is None else decode_source_state(restored)
    return ItemEnumerator(state, limits, RowGroupsRead(files))


def rows_of(files):
    return [(i, g) for i, groups in enumerate(files) for g in range(len(groups))]


@given(FILES, LIMITS, st.lists(st.integers(0, 4), max_size=6))
def test_nothing_is_lost_or_doubled_wherever_attempts_end(files, limits, ends):
    expected = increments_of(enumerator_of(files, limits))
    found, state = [], None
    for left in [*ends, len(expected)]:
        enumerator = enumerator_of(files, limits, state)
        for increment in itertools.islice(iter(enumerator.next_increment, None), left):
            found.append((increment, enumerator.load(increment)))
            enumerator.finish(increment)
        enumerator.next_increment()  # planned, and lost with the attempt
        state = state_of(enumerator)

    assert [row for _, rows in found for row in rows] == rows_of(files)
    assert [increment for increment, _ in found] == expected


@given(FILES, st.lists(LIMITS, min_size=1, max_size=5), st.data())
def test_other_limits_after_a_restore_lose_and_double_nothing(files, limits, data):
    found, state = [], None
    for number, limit in enumerate(limits):
        enumerator = enumerator_of(files, limit, state)
        planned = increments_of(enumerator)
        is_last = number == len(limits) - 1
        chosen = (
            planned
            if is_last
            else data.draw(st.lists(st.sampled_from(planned), unique=True) if planned else st.just([]))
        )
        for increment in chosen:
            found += enumerator.load(increment)
            enumerator.finish(increment)
        state = state_of(enumerator)

    assert sorted(found) == rows_of(files)


@given(FILES, LIMITS)
def test_progress_ends_where_everything_is_finished(files, limits):
    enumerator = enumerator_of(files, limits)
    done = []
    for increment in increments_of(enumerator):
        enumerator.finish(increment)
        done.append(enumerator.finished_bytes)

    assert done == sorted(done)
    assert enumerator.finished_bytes == enumerator.total_bytes
    assert enumerator.finished_splits == enumerator.total_splits == len(files)


def test_the_same_increment_loaded_twice_gives_the_same_rows():
    enumerator = enumerator_of([[5, 5, 5]], Limits(size_bytes=5))
    increment = enumerator.next_increment()

    assert enumerator.load(increment) == enumerator.load(increment) == [(0, 0)]


def test_an_increment_finished_twice_counts_once():
    enumerator = enumerator_of([[5, 5, 5]], Limits(size_bytes=5))
    increment = enumerator.next_increment()
    enumerator.finish(increment)
    once = enumerator.snapshot()
    enumerator.finish(increment)
    assert enumerator.snapshot() == once


def test_an_increment_of_another_attempt_is_not_finished():
    increment = enumerator_of([[1]], Limits()).next_increment()
    with pytest.raises(InvalidConfigurationError, match="found number 1"):
        enumerator_of([[1]], Limits()).finish(increment)


def test_files_are_looked_at_before_they_are_loaded():
    files = [[1], [1]]
    items = tuple(Item.of(str(i), 1, "") for i in range(2))
    reader = RowGroupsRead(files)
    enumerator: Any = ItemEnumerator(SourceState(Ledger(items)), Limits(items=1), reader)
    enumerator.load(enumerator.next_increment())
    assert reader.looked_at == ["0"]


def test_a_snapshot_is_not_changed_by_what_follows():
    enumerator = enumerator_of([[1, 1, 1], [1]], Limits(size_bytes=1))
    enumerator.finish(enumerator.next_increment())
    snapshot = enumerator.snapshot()
    before = copy.deepcopy(snapshot)

    for increment in increments_of(enumerator):
        enumerator.finish(increment)

    assert snapshot == before


def test_the_listing_is_the_same_object_in_all_snapshots():
    enumerator = enumerator_of([[1], [1]], Limits(items=1))
    first = enumerator.snapshot()
    enumerator.finish(enumerator.next_increment())
    assert enumerator.snapshot()["listing"] is first["listing"]


def test_progress_of_files_finished_in_order_stays_small():
    enumerator = enumerator_of([[1]] * 5000, Limits(items=1))
    for increment in increments_of(enumerator):
        enumerator.finish(increment)
    assert enumerator.snapshot()["progress"] == {"finished": [[0, 5000]], "partial": []}


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 2},
        {"format": None},
        {"listing": None},
        {"progress": {}},
        {"progress": {"finished": [[0, 3]], "partial": []}},
        {"progress": {"finished": [], "partial": [[2, [[0, 1]], 1]]}},
        {"progress": {"finished": [["x"]], "partial": []}},
        {"increments": "many"},
    ],
)
def test_a_damaged_state_is_refused(damage):
    state = enumerator_of([[1], [1]], Limits()).snapshot()
    with pytest.raises(CorruptStateError):
        decode_source_state({**state, **damage})


@given(FILES, st.lists(st.tuples(st.integers(1, 60), st.integers(1, 4)), max_size=30), st.randoms())
def test_state_after_increments_of_any_size_in_any_order_leaves_exactly_the_rest(files, sizes, random):
    enumerator = enumerator_of(files, Limits())
    listed = enumerator.snapshot()
    planned = []
    for amount, least in sizes:
        enumerator.size_increments(amount, least)
        increment = enumerator.next_increment()
        if increment is None:
            break
        planned.append((enumerator.encode(increment), enumerator.load(increment)))
    finished = random.sample(planned, random.randint(0, len(planned)))
    state = decode_state(encode_state(state_after(listed, [pieces for pieces, _ in finished])))
    rest = enumerator_of(files, Limits(), state)
    left = [row for increment in iter(rest.next_increment, None) for row in rest.load(increment)]
    assert sorted([*left, *(row for _, rows in finished for row in rows)]) == rows_of(files)


@given(FILES, LIMITS, st.integers(1, 100), st.integers(1, 4))
@example(files=[[7], [1, 23, 30]], limits=Limits(size_bytes=27), amount=27, least=2)
def test_a_size_that_is_set_later_stays_within_the_limits_of_the_user(files, limits, amount, least):
    enumerator = enumerator_of(files, limits)
    enumerator.size_increments(amount, least)
    for increment in iter(enumerator.next_increment, None):
        rows = enumerator.load(increment)
        assert len({position for position, _ in rows}) <= (limits.items or 10**9)
        if len(rows) > 1 and limits.size_bytes is not None:
            pieces = {position for position, _ in rows}
            assert len(pieces) == 1 or sum(files[i][g] for i, g in rows) <= limits.size_bytes


def test_an_increment_has_the_least_number_of_items_even_beyond_its_size():
    enumerator = enumerator_of([[9], [9], [9], [9], [9]], Limits())
    enumerator.size_increments(1, 2)
    assert [len(each.splits) for each in iter(enumerator.next_increment, None)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("items", "limits", "amounts", "counts"),
    [([[1]] * 9, Limits(), (2, 5), [2, 5]), ([[0]] * 7, Limits(items=4), (3, 9), [3, 4])],
    ids=["in bytes", "in items that have no size"],
)
def test_the_size_may_change_between_increments(items, limits, amounts, counts):
    enumerator = enumerator_of(items, limits)
    found = []
    for amount in amounts:
        enumerator.size_increments(amount, 1)
        found.append(len(enumerator.next_increment().splits))
    assert found == counts


def test_the_finished_share_is_in_bytes_or_items():
    enumerator = enumerator_of([[30], [10]], Limits(items=1))
    enumerator.finish(enumerator.next_increment())
    assert enumerator.finished_share == 0.75
    unsized = enumerator_of([[0], [0]], Limits(items=1))
    unsized.finish(unsized.next_increment())
    assert unsized.finished_share == 0.5


def test_pieces_follow_their_items_into_a_listing_that_lacks_some():
    """A source may leave out items by its rules, and then counts the others from another number."""

    def listed(*names):
        items = tuple(Item.of(name, 4, "") for name in names)
        return ItemEnumerator(SourceState(Ledger(items)), Limits(), RowGroupsRead([])).snapshot()

    before, now = listed("a", "b", "c", "d"), listed("b", "d", "c")
    whole, cut = [[1, 3]], [[3, 2, 0, 1, 2], [0, 1]]
    assert moved_pieces(whole, before, now) == [[0, 1], [2, 3]]
    assert moved_pieces(cut, before, now) == [[1, 2, 0, 1, 2]]
    left = state_after(now, [moved_pieces(whole, before, now)])["progress"]
    assert left["finished"] == [[0, 1], [2, 3]]


def test_consecutive_items_are_encoded_as_a_range():
    enumerator = enumerator_of([[1]] * 5, Limits())
    assert enumerator.encode(enumerator.next_increment()) == [[0, 5]]


@pytest.mark.parametrize(
    ("written", "size"),
    [(7, 7), ("7", 7), ("256 MiB", 256 << 20), ("2gib", 2 << 30), ("1.5 kB", 1500), ("1 GB", 10**9), ("3b", 3)],
)
def test_a_size_is_a_number_or_a_text_with_a_unit(written, size):
    assert parse_bytes_per_increment(written) == size


@pytest.mark.parametrize("written", [None, "auto"])
def test_without_a_size_the_source_finds_one_itself(written):
    assert parse_bytes_per_increment(written) is None


@pytest.mark.parametrize("written", [0, -1, "", "MiB", "1 XB", "-3", "0.1 B", True, 1.5, "1 T"])
def test_what_is_no_size_is_refused_by_the_name_of_the_argument(written):
    with pytest.raises(InvalidConfigurationError, match="Expected bytes_per_increment to be"):
        parse_bytes_per_increment(written)


@pytest.mark.parametrize("count", [0, -1, True, "3", 1.0])
def test_what_is_no_count_is_refused(count):
    with pytest.raises(InvalidConfigurationError, match="files to be a whole number of at least 1"):
        parse_limits(None, ("files", count))
