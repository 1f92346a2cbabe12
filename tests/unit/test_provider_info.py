from __future__ import annotations

import importlib
import importlib.resources
import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from airflow.sdk import BaseSensorOperator
from airflow.sdk.plugins_manager import AirflowPlugin
from airflow.triggers.base import BaseTrigger
from airflow.utils.db_manager import BaseDBManager

from airflow_provider_statecheck.configuration import StatecheckSettings
from airflow_provider_statecheck.get_provider_info import get_provider_info
from airflow_provider_statecheck.operators.checkpointed import CheckpointedOperator
from tests.optional_providers import is_importable
from tests.unit.interpreter import modules_loaded_by

INFO = get_provider_info()
MODULES = ("operators", "sensors", "triggers", "hooks")
(CONNECTION,) = INFO["connection-types"]
OPTIONS: dict[str, dict[str, Any]] = INFO["config"]["statecheck"]["options"]
# Where the API is, who tidies up and what is served belong to the deployment, all others to a stage.
OF_DEPLOYMENT = {
    "api_url",
    "maintenance_dags",
    "migrate_on_start",
    "read_other_jobs",
    "serve_state",
    "state_requests_per_second",
}
STAGE_OPTIONS = {name: option for name, option in OPTIONS.items() if name not in OF_DEPLOYMENT}


def _dotted_names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _dotted_names(item)
    elif isinstance(value, str) and value.startswith("airflow_provider_statecheck."):
        yield value


def _resolve(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return getattr(importlib.import_module(module), attribute)


def test_the_declaration_follows_airflows_schema():
    schema = json.loads(importlib.resources.files("airflow").joinpath("provider_info.schema.json").read_text())

    jsonschema.validators.validator_for(schema)(schema).validate(INFO)


def test_each_section_is_one_that_airflow_reads():
    """The schema takes any key, so a misspelt one would be dropped silently."""
    schema = json.loads(importlib.resources.files("airflow").joinpath("provider_info.schema.json").read_text())

    assert set(INFO) - set(schema["properties"]) <= {"package-name"}


@pytest.mark.parametrize("name", [*filter(is_importable, sorted(set(_dotted_names(INFO))))])
def test_each_name_in_the_declaration_can_be_imported(name):
    assert _resolve(name) is not None


def test_db_managers_and_plugins_are_what_airflow_takes_them_for():
    assert [issubclass(_resolve(name), BaseDBManager) for name in INFO["db-managers"]] == [True]
    assert [issubclass(_resolve(item["plugin-class"]), AirflowPlugin) for item in INFO["plugins"]] == [True]
    assert [item["name"] for item in INFO["plugins"]] == [_resolve(INFO["plugins"][0]["plugin-class"]).name]


def test_each_integration_that_is_referred_to_is_declared():
    declared = {item["integration-name"] for item in INFO["integrations"]}

    assert {item["integration-name"] for key in MODULES for item in INFO[key]} <= declared


def test_connection_types_follow_the_strict_form_that_the_connection_form_reads():
    """Airflow reads them from here, so that the form needs no hook; its lenient schema would let a misspelling pass."""
    strict = json.loads(importlib.resources.files("airflow").joinpath("provider.yaml.schema.json").read_text())
    schema = strict["properties"]["connection-types"]

    jsonschema.validators.validator_for(schema)(schema).validate(INFO["connection-types"])
    assert set(CONNECTION) <= set(schema["items"]["properties"])


def test_the_connection_is_the_one_that_its_hook_takes():
    hook = _resolve(CONNECTION["hook-class-name"])

    assert (hook.conn_type, hook.hook_name) == (CONNECTION["connection-type"], CONNECTION["hook-name"])
    arguments = inspect.signature(hook.__init__).parameters
    assert arguments[hook.conn_name_attr].default == hook.default_conn_name
    assert callable(hook.test_connection)


def test_the_connections_form_hides_and_names_fields_that_there_are():
    behaviour = CONNECTION["ui-field-behaviour"]
    fields = {"description", "host", "login", "password", "schema", "port", "extra", *CONNECTION["conn-fields"]}

    assert {*behaviour["hidden-fields"], *behaviour["relabeling"], *behaviour["placeholders"]} <= fields
    assert not set(behaviour["hidden-fields"]) & {*behaviour["relabeling"], *behaviour["placeholders"]}


def test_airflow_shows_the_connections_form_without_importing_the_hook():
    code = """
from airflow.providers_manager import ProvidersManager
shown = {each.connection_type: each for each in ProvidersManager().iter_connection_type_hook_ui_metadata()}
assert shown["statecheck"].hook_name == "Statecheck coordinator"
assert shown["statecheck"].field_behaviour["relabeling"] == {"host": "API URL"}
"""

    assert CONNECTION["hook-class-name"].rpartition(".")[0] not in modules_loaded_by(code)


@pytest.mark.parametrize(("section", "kind"), [("sensors", BaseSensorOperator), ("triggers", BaseTrigger)])
def test_each_module_of_sensors_and_triggers_has_one(section: str, kind: type):
    modules = [_resolve(name) for item in INFO[section] for name in item["python-modules"]]

    for module in modules:
        own = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
        assert any(issubclass(each, kind) for each in own), module.__name__


def test_the_options_are_the_settings_and_arguments_of_the_operator():
    arguments = inspect.signature(CheckpointedOperator.__init__).parameters

    of_flinks_keys = {"state_config"}
    fields = [name for name in StatecheckSettings.__dataclass_fields__ if name not in of_flinks_keys]
    assert list(STAGE_OPTIONS) == fields
    assert set(STAGE_OPTIONS) <= set(arguments)
    assert {arguments[name].default for name in STAGE_OPTIONS} == {None}


@pytest.mark.parametrize("name", STAGE_OPTIONS)
def test_the_operator_documents_the_argument_behind_each_option(name):
    assert f":param {name}:" in (CheckpointedOperator.__doc__ or "")


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_has_the_keys_and_a_type_that_airflow_asks_for(name):
    option = OPTIONS[name]

    assert set(option) == {"description", "version_added", "type", "example", "default"}
    assert option["type"] in {"string", "boolean", "integer", "float"}
    assert option["default"] is None or isinstance(option["default"], str)


def test_the_declared_defaults_are_within_their_ranges():
    defaults = {name: option["default"] for name, option in STAGE_OPTIONS.items()}
    defaults["checkpoint_dir"] = OPTIONS["checkpoint_dir"]["example"]

    assert StatecheckSettings.from_airflow(**defaults).num_retained == int(defaults["num_retained"])


def test_reading_the_declaration_loads_the_standard_library_only():
    """Every Airflow process and command reads it."""
    loaded = modules_loaded_by("import airflow_provider_statecheck.get_provider_info as m; m.get_provider_info()")
    others = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}

    assert others == {
        "airflow_provider_statecheck",
        "airflow_provider_statecheck.checkpoint",
        "airflow_provider_statecheck.checkpoint.masking",  # guards the logs of the package from its first line on
        "airflow_provider_statecheck.exceptions",
        "airflow_provider_statecheck.get_provider_info",
        "airflow_provider_statecheck.settings",
    }
