"""Settings of the Arrow backend come from the application, else from the configuration."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowStateBackend
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.backends.loading import load_state_backend


def test_configuration_fills_what_the_application_left_unset() -> None:
    config = {"state.backend.arrow.block-rows": "100", "state.backend.arrow.part-bytes": "1 MiB"}
    assert ArrowStateBackend().configure(config).settings == ArrowStateSettings(block_rows=100, part_bytes=1 << 20)
    own = ArrowStateBackend(ArrowStateSettings(block_rows=7))
    assert own.configure(config).settings == own.settings


def test_compression_may_be_turned_off() -> None:
    assert ArrowStateSettings.from_config({"state.backend.arrow.compression": "none"}).compression is None


@pytest.mark.parametrize(
    "config",
    [
        {"state.backend.arrow.block-rows": 0},
        {"state.backend.arrow.memtable-bytes": "many"},
        {"state.backend.arrow.compression": "gzip"},
    ],
)
def test_setting_out_of_its_range_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(InvalidConfigurationError):
        ArrowStateSettings.from_config(config)


def test_arrow_is_the_default_backend() -> None:
    assert isinstance(load_state_backend(None, {}), ArrowStateBackend)


def test_backend_can_be_pickled() -> None:
    backend = ArrowStateBackend(ArrowStateSettings(block_rows=7))
    assert pickle.loads(pickle.dumps(backend)) == backend


def test_naming_the_backend_loads_no_arrow() -> None:
    program = (
        "import sys; import airflow_provider_statecheck.state.arrow.keyed_backend; "
        "sys.exit(bool({'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
