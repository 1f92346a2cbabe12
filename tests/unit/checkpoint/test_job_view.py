"""Which pages of checkpoints may be asked for."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.store import LARGEST_PAGE, CheckpointPage
from airflow_provider_statecheck.exceptions import InvalidConfigurationError


@pytest.mark.parametrize("limit", [0, LARGEST_PAGE + 1])
def test_a_page_of_no_or_too_many_checkpoints_is_refused(limit: int) -> None:
    with pytest.raises(InvalidConfigurationError, match="limit"):
        CheckpointPage(limit=limit)


@pytest.mark.parametrize("before", [0, -1, 2**63])
def test_a_page_before_what_is_no_checkpoint_id_is_refused(before: int) -> None:
    with pytest.raises(InvalidConfigurationError, match="before"):
        CheckpointPage(before=before)
