"""References to the place of a checkpoint."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.properties import CheckpointStorageLocationReference as Reference
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

MAGIC = Reference.of_path("x").encoded[:-1]


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_a_path_comes_back_as_it_was(path: str) -> None:
    reference = Reference(Reference.of_path(path).encoded)
    assert (reference.path, reference.is_default) == (path, False)


def test_a_path_is_encoded_as_four_bytes_and_its_utf8() -> None:
    assert len(MAGIC) == 4
    assert Reference.of_path("s3://b/ä").encoded == MAGIC + "s3://b/ä".encode()


def test_no_bytes_are_the_default_and_are_equal_to_it() -> None:
    assert Reference(b"") == Reference() == Reference.default()
    assert Reference.default().is_default


@pytest.mark.parametrize(
    ("encoded", "found"),
    [
        (b"", "the default one"),
        (b"abc", "only 3 bytes, which is too short"),
        (MAGIC, "only 4 bytes, which is too short"),
        (b"wxyz/data", "bytes with another prefix"),
        (MAGIC + b"\xff\xfe", "not UTF-8"),
    ],
)
def test_bytes_that_are_no_path_are_refused(encoded: bytes, found: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=found):
        _ = Reference(encoded).path


@pytest.mark.parametrize(("path", "found"), [("", "an empty one"), ("/a\ud800", "lone surrogates")])
def test_a_path_that_cannot_be_encoded_is_refused(path: str, found: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=found):
        Reference.of_path(path)


def test_a_reference_that_is_no_bytes_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="found str"):
        Reference("file:///data")  # type: ignore[arg-type]


def test_references_are_values_that_can_be_sent() -> None:
    reference = Reference.of_path("file:///data")
    assert pickle.loads(pickle.dumps(reference)) == reference
    assert len({reference, Reference.of_path("file:///data"), Reference.of_path("file:///other")}) == 2
