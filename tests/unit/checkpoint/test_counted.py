"""Numbers with their nouns, as messages and pages show them."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.masking import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "job", "0 jobs"),
        (1, "job", "1 job"),
        (2, "more job", "2 more jobs"),
        (1, "directory", "1 directory"),
        (1_200, "directory", "1,200 directories"),
        (3, "day", "3 days"),
    ],
)
def test_a_noun_agrees_with_its_number(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text
