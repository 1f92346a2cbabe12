"""Items of a source, and sets of numbers as bounds."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.state.source_items import Intervals, Item, pack_items, unpack_items
from airflow_provider_statecheck.storage.stored_json import decode_state, encode_state

NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1)
ITEMS = st.lists(st.builds(Item.of, NAMES, st.integers(0, 2**60), st.text()), unique_by=lambda item: item.name)


@given(ITEMS)
def test_items_are_the_same_after_they_were_packed(items):
    assert unpack_items(decode_state(encode_state(pack_items(items)))) == tuple(items)


def test_a_name_that_is_not_unicode_is_kept():
    items = (Item.of("file:///data/\udcff", 1, ""),)

    assert unpack_items(pack_items(items)) == items


def test_another_size_or_version_is_another_digest():
    digests = {Item.of("a", size, version).digest for size in (1, 2) for version in ("x", "y")}

    assert len(digests) == 4


def test_the_files_of_one_write_cost_few_bytes_each():
    write = uuid.UUID(int=7)
    files = [Item.of(f"s3://lake/orders/part-{i:05}-{write}-c000.parquet", 10**8 + i, i) for i in range(10_000)]

    packed = pack_items(files)

    assert sum(map(len, packed.values())) < 16 * len(files)


@pytest.mark.parametrize("part", ["names", "sizes", "digests"])
@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:4], lambda b: "text", lambda b: None])
def test_a_damaged_listing_is_refused(part, damage):
    packed = pack_items([Item.of("a", 1, ""), Item.of("b", 2, "")])

    with pytest.raises(CorruptStateError):
        unpack_items({**packed, part: damage(packed[part])})


def test_a_listing_without_a_part_is_refused():
    with pytest.raises(CorruptStateError):
        unpack_items({"names": b""})


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_bounds_hold_what_a_set_would(some, others):
    both = Intervals.of(some).plus(Intervals.of(others).bounds)

    assert list(both) == sorted(some | others)
    assert len(both) == len(some | others)
    assert {number for number in range(70) if number in both} == some | others


def test_neighbours_are_kept_as_one():
    assert Intervals.of([3, 1, 2, 7]).bounds == ((1, 4), (7, 8))


def test_bounds_without_numbers_are_not_kept():
    assert Intervals().plus([(3, 3), (5, 4)]).bounds == ()
