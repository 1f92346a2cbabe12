from __future__ import annotations

import re

from airflow_provider_statecheck.cli import (
    content_commands,
    maintenance_commands,
    savepoint_commands,
    state_commands,
)
from airflow_provider_statecheck.get_provider_info import get_provider_info
from scripts.docs.commands import commands
from tests.unit.interpreter import modules_loaded_by

MODULES = (
    content_commands,
    maintenance_commands,
    savepoint_commands,
    state_commands,
)


def test_the_declaration_loads_nothing_of_the_commands():
    """Every airflow command loads it."""
    loaded = modules_loaded_by(
        "from airflow_provider_statecheck.cli.definition import get_statecheck_commands as get; get()"
    )

    # Airflow itself reads the provider's declaration, now or later.
    declaration = {"airflow_provider_statecheck.get_provider_info"}
    ours = {name for name in loaded if name.startswith("airflow_provider_statecheck")}
    assert ours - declaration == {
        "airflow_provider_statecheck",
        "airflow_provider_statecheck.cli",
        "airflow_provider_statecheck.cli.definition",
    }


def test_each_command_leads_to_its_function_and_takes_an_output_format():
    """Airflow sends log lines to stderr only for commands that have one."""
    for name, each in commands().items():
        assert any(callable(getattr(module, re.sub("[ -]", "_", name), None)) for module in MODULES), name
        assert "--output" in {flag for arg in each.args for flag in arg.flags}


def test_the_provider_declares_the_commands():
    name = "airflow_provider_statecheck.cli.definition.get_statecheck_commands"
    assert get_provider_info()["cli"] == [name]
