"""Which sources pass the whole contract in ``make test``."""

from __future__ import annotations

import inspect

import pytest

from airflow_provider_statecheck.testing.source_contract import SourceContract

_KILLS = "test_kills_between_any_two_steps_lose_and_double_nothing"
_WHOLE = "TestParquetFiles"


@pytest.hookimpl(tryfirst=True)  # before -m selects by these marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the long tests what sources share with Parquet files; only what they do at kills is their own."""
    for item in items:
        cls = getattr(item, "cls", None)
        is_contract = inspect.isclass(cls) and issubclass(cls, SourceContract) and cls.__name__ != _WHOLE
        if is_contract and not item.name.startswith(_KILLS):
            item.add_marker(pytest.mark.soak)
