"""Which retained checkpoints the newest one subsumes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.fencing import beyond_retention
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from tests.unit.checkpoint.completed_rows import completed

PROPERTIES = {
    "c": CheckpointProperties.for_checkpoint(),
    "f": CheckpointProperties.for_checkpoint(is_full=True),
    "s": CheckpointProperties.for_savepoint(),
    "u": CheckpointProperties.for_unclaimed_snapshot(),
    "x": CheckpointProperties.for_sync_savepoint(terminate=False),
    "t": CheckpointProperties.for_sync_savepoint(terminate=True),
}


def checkpoints(text: str) -> list[CheckpointRecord]:
    """Read checkpoints such as ``c1 s2``: c, f(ull), s(avepoint), u(nclaimed), x (stop), t(erminate)."""
    return [completed(int(word[1:]), properties=PROPERTIES[word[0]]) for word in text.split()]


def kept(text: str, num_retained: int) -> str:
    found = checkpoints(text)
    gone = {c.checkpoint_id for c in beyond_retention(found, num_retained)}
    return " ".join(word for word in text.split() if int(word[1:]) not in gone)


@pytest.mark.parametrize(
    ("before", "num_retained", "after"),
    [
        ("c1 c2 s3 s4 s5", 1, "c2 s5"),
        ("c1 s2 c3", 1, "c3"),
        ("c1 s2 t3", 1, "t3"),
        ("c1 s2 x3", 1, "x3"),
        ("c1 c2 c3", 1, "c3"),
        ("c1 c2 c3", 2, "c2 c3"),
        ("c1 c2 c3", 3, "c1 c2 c3"),
        ("c1 f2 f3", 1, "f3"),
        ("s1 s2 s3", 1, "s3"),
        ("c1 s2 s3", 2, "c1 s3"),
        ("s1 c2 s3", 2, "c2 s3"),
        ("c1 x2 c3", 1, "c3"),
        ("c1 x2 s3", 1, "c1 s3"),
        ("u1 c2", 1, "c2"),
        ("u1 c2 c3", 2, "c2 c3"),
        ("u1", 1, "u1"),
        ("", 1, ""),
    ],
)
def test_the_rule_of_subsumption(before, num_retained, after):
    assert kept(before, num_retained) == after


def test_the_oldest_go_first_and_come_first():
    assert [c.checkpoint_id for c in beyond_retention(checkpoints("c1 c2 s3 s4 s5"), 1)] == [1, 3, 4]


def test_a_number_below_one_is_refused():
    with pytest.raises(InvalidConfigurationError, match="num_retained"):
        beyond_retention(checkpoints("c1"), 0)


def walked(text: str, num_retained: int) -> str:
    """Apply the rule as it is told: from the oldest on, one by one, while there are too many."""
    words = text.split()
    own = [word for word in words if word[0] in "cf"]
    for word in list(words):
        is_droppable = word != words[-1] and (word[0] in "suxt" or words[-1][0] in "xt" or word != own[-1])
        if len(words) > num_retained and is_droppable:
            words.remove(word)
    return " ".join(words)


@given(kinds=st.lists(st.sampled_from(sorted(PROPERTIES)), max_size=9), num_retained=st.integers(1, 5))
def test_the_rule_equals_a_walk_from_the_oldest(kinds, num_retained):
    text = " ".join(f"{kind}{index}" for index, kind in enumerate(kinds, 1))
    assert kept(text, num_retained) == walked(text, num_retained)
