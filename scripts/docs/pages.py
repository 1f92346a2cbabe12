"""Generated regions of pages, between ``<!-- generated: ... -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Callable

from scripts.docs.architecture import import_rules_table, layers_list, package_tree
from scripts.docs.arguments import arguments_table
from scripts.docs.column_types import types_table
from scripts.docs.commands import command_reference, exit_statuses_table
from scripts.docs.errors import unretried_errors_table
from scripts.docs.figures import figures_list
from scripts.docs.lost_work import lost_work_table
from scripts.docs.options import (
    arrow_settings_table,
    flink_keys_table,
    options_table,
    places_table,
    storage_settings_table,
)
from scripts.docs.versions import versions_table

_REGION = re.compile(r"<!-- generated: (?P<part>\S+)(?: (?P<name>[^>]+))? -->\n.*?<!-- end -->", re.DOTALL)
_PARTS: dict[str, Callable[..., str]] = {
    "options": options_table,
    "places": places_table,
    "flink-keys": flink_keys_table,
    "arrow-settings": arrow_settings_table,
    "storage-settings": storage_settings_table,
    "arguments": arguments_table,
    "command": command_reference,
    "exit-statuses": exit_statuses_table,
    "unretried-errors": unretried_errors_table,
    "types": types_table,
    "tree": package_tree,
    "layers": layers_list,
    "import-rules": import_rules_table,
    "figures": figures_list,
    "versions": versions_table,
    "lost-work": lost_work_table,
}


def generated(page: str) -> str:
    """Return the text of a page with all its regions generated."""
    return _REGION.sub(_region, page)


def _region(found: re.Match[str]) -> str:
    first_line, _, _ = found[0].partition("\n")
    names = [found["name"]] if found["name"] else []
    return f"{first_line}\n\n{_PARTS[found['part']](*names).strip()}\n\n<!-- end -->"
