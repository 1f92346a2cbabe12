"""Settings of ``[statecheck]``: the provider's options, their keys in Flink, and the settings of the state backend."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

from airflow_provider_statecheck.checkpoint.config import STORAGE_OPTIONS, CheckpointConfig
from airflow_provider_statecheck.checkpoint.config_options import ConfigOption
from airflow_provider_statecheck.configuration import FLINK_COUNTERPARTS, SECTION
from airflow_provider_statecheck.get_provider_info import get_provider_info
from airflow_provider_statecheck.settings import SETTINGS, TASKS, Place, Setting
from airflow_provider_statecheck.state.arrow.layout import PREFIX, ArrowStateSettings
from airflow_provider_statecheck.storage.views.checkpoint_storages import DEFAULT_STORAGE
from scripts.docs.tables import code, table

_HEADINGS = ("`[statecheck]`", "Operators", "Operators of stages", "`StageContext.open`", "`run_stage`")
_UNITS = {"MiB": 1 << 20, "KiB": 1 << 10}


def options_table() -> str:
    """Return the table of the options that the provider declares."""
    options = get_provider_info()["config"][SECTION]["options"]
    rows = ((code(name), option["type"], _default(option), _meaning(name, option)) for name, option in options.items())
    return table(("Option", "Type", "Default", "Meaning"), rows)


def places_table() -> str:
    """Return the table of the places where each setting can be given, with its default there."""
    rows = ((code(name), *(_default_in(setting, place) for place in Place)) for name, setting in SETTINGS.items())
    return table(("Setting", *_HEADINGS), rows)


def _default_in(setting: Setting, place: Place) -> str:
    if place not in setting.places:
        return ""
    if place in setting.required_in:
        return "required"
    default = default_in(setting, place)
    return "yes" if default is None else code(default)


def default_in(setting: Setting, place: Place) -> Any:
    """Return the default in a signature; that of an operator is the one of the section, if it is an option."""
    return None if place in TASKS and Place.SECTION in setting.places else setting.default


def flink_keys_table() -> str:
    """Return the table of the options that have a key in Flink."""
    rows = ((code(name), code(of.key), ", ".join(map(code, of.old_keys))) for name, of in FLINK_COUNTERPARTS.items())
    return table(("Option", "Key in Flink", "Deprecated keys"), rows)


def arrow_settings_table() -> str:
    """Return the table of the keys of the ``arrow`` state backend."""
    return table(("Key", "Default", "Meaning"), _arrow_rows())


def storage_settings_table() -> str:
    """Return the table of the keys of the checkpoint storage of a stage."""
    meanings = _field_docstrings(CheckpointConfig)
    rows = ((code(each.key), code(_shown(each)), meanings[each.name].replace("``", "`")) for each in STORAGE_OPTIONS)
    return table(("Key", "Default", "Meaning"), rows)


def _shown(option: ConfigOption[Any]) -> str:
    if isinstance(option.default, bool):
        return str(option.default).lower()
    is_size = isinstance(option.default, int)
    return _readable("bytes" if is_size else "", option.default) if option.default is not None else DEFAULT_STORAGE


def _default(option: dict[str, Any]) -> str:
    return "none" if option["default"] is None else code(option["default"])


def _meaning(name: str, option: dict[str, Any]) -> str:
    facts = [
        option["description"],
        f"Example: {code(option['example'])}" if option["example"] else "",
        f"Key in Flink: {code(FLINK_COUNTERPARTS[name].key)}" if name in FLINK_COUNTERPARTS else "",
        f"Environment variable: {code(f'AIRFLOW__{SECTION.upper()}__{name.upper()}')}",
        f"Since {option['version_added']}",
    ]
    return "<br>".join(filter(None, facts))


def _arrow_rows() -> Iterator[tuple[str, str, str]]:
    meanings = _field_docstrings(ArrowStateSettings)
    for field in dataclasses.fields(ArrowStateSettings):
        yield (
            code(PREFIX + field.name.replace("_", "-")),
            code(_readable(field.name, field.default)),
            meanings[field.name].replace("``", "`"),
        )


def _readable(name: str, default: Any) -> str:
    if "bytes" not in name:
        return str(default)
    return next(f"{default // size} {unit}" for unit, size in _UNITS.items() if default % size == 0)


def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstring of each field, which is available in the source only."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    fields = (
        (getattr(field, "target", None) or getattr(field, "targets", [None])[0], text)
        for field, text in itertools.pairwise(body)
    )
    return {
        field.id: text.value.value
        for field, text in fields
        if isinstance(field, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }
