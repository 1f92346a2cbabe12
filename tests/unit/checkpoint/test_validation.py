from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.messages import require_valid
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from tests.messages import make_registration


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_retained": 1},
        {"num_retained": 1000},
        {"checkpoint_timeout_seconds": 0.01},
        {"storage_base": "file:///data"},
        {"storage_base": "s3://bucket/base"},
    ],
)
def test_settings_in_range_pass(settings):
    require_valid(make_registration(**settings))


@pytest.mark.parametrize(
    ("settings", "key", "expected"),
    [
        ({"num_retained": 0}, "num_retained", "at least 1"),
        ({"num_retained": -3}, "num_retained", "at least 1"),
        ({"checkpoint_timeout_seconds": 0.0}, "checkpoint_timeout_seconds", "from 0.01 seconds to a year"),
        ({"checkpoint_timeout_seconds": float("nan")}, "checkpoint_timeout_seconds", "from 0.01 seconds to a year"),
        ({"checkpoint_timeout_seconds": 1e300}, "checkpoint_timeout_seconds", "from 0.01 seconds to a year"),
        ({"storage_base": "/data"}, "checkpoint_dir", "a URI such as file:///data/checkpoints"),
        ({"storage_base": ""}, "checkpoint_dir", "a URI such as file:///data/checkpoints"),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_value_and_what_is_expected(settings, key, expected):
    (value,) = settings.values()
    with pytest.raises(InvalidConfigurationError) as raised:
        require_valid(make_registration(**settings))
    assert str(raised.value) == f"Expected {key} to be {expected}, found {value!r}."
    assert raised.value.key == key
    assert raised.value.value is value


def test_the_first_setting_out_of_range_is_the_one_reported():
    with pytest.raises(InvalidConfigurationError, match="num_retained"):
        require_valid(make_registration(num_retained=0, checkpoint_timeout_seconds=0.0))


def test_a_condition_of_ones_own_decides():
    require("poll", 5, lambda n: n > 4, "above 4")
    with pytest.raises(InvalidConfigurationError, match="Expected poll to be above 4, found 4"):
        require("poll", 4, lambda n: n > 4, "above 4")
