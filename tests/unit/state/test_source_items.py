"""What is kept of each file."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.state.source_items import Item, pack_items, unpack_items
from airflow_provider_statecheck.storage.state_json import decode_state, encode_state

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
