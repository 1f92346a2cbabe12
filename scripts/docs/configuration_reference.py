"""
Directives for what code declares, so that no page says it a second time.

``statecheck-options`` lists the options of the provider's declaration, ``statecheck-arguments`` the arguments of a class.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from airflow_provider_statecheck.get_provider_info import get_provider_info

_PARAMETER = re.compile(r"^:param (\w+):(.*(?:\n[ \t]+.*)*)", re.MULTILINE)


class OptionsDirective(SphinxDirective):
    """Lists every option of every section that the provider declares."""

    def run(self) -> list[nodes.Node]:
        """Return the description of the options."""
        sections = get_provider_info()["config"].items()
        texts = [option_text(section, name, o) for section, of in sections for name, o in of["options"].items()]
        return self.parse_text_to_nodes("\n".join(texts))


class ArgumentsDirective(SphinxDirective):
    """Lists the arguments that a class adds to those of its base."""

    required_arguments: ClassVar[int] = 1

    def run(self) -> list[nodes.Node]:
        """Return the table of arguments."""
        module, _, name = self.arguments[0].rpartition(".")
        return self.parse_text_to_nodes(arguments_text(getattr(importlib.import_module(module), name)))


def option_text(section: str, name: str, option: dict[str, Any]) -> str:
    """
    Describe an option in Markdown.

    :param section: The section of Airflow's configuration.
    :param name: Name of the option.
    :param option: What the provider declares of it.
    """
    default = "none" if option["default"] is None else f"`{option['default']}`"
    example = f"\nExample: `{option['example']}`.\n" if option["example"] else ""
    variable = f"AIRFLOW__{section.upper()}__{name.upper()}"
    return (
        f"```{{confval}} {name}\n:type: {option['type']}\n:default: {default}\n\n{option['description']}\n{example}\n"
        f"Environment variable: `{variable}`; there since {option['version_added']}.\n```\n"
    )


def arguments_text(kind: type) -> str:
    """
    Describe the arguments of a class in Markdown.

    :param kind: The class; its docstring has a ``:param`` for each.
    """
    rows = "\n".join(f"| `{name}` | {default} | {meaning} |" for name, default, meaning in _arguments(kind))
    return f"| Argument | Default | Meaning |\n|---|---|---|\n{rows}\n"


def _arguments(kind: type) -> Iterator[tuple[str, str, str]]:
    for name, text in _PARAMETER.findall(inspect.getdoc(kind) or ""):
        yield name, _default(kind, name), " ".join(text.split())


def _default(kind: type, name: str) -> str:
    signatures = (inspect.signature(vars(each)["__init__"]) for each in kind.__mro__ if "__init__" in vars(each))
    default = next(found.parameters[name].default for found in signatures if name in found.parameters)
    if default is inspect.Parameter.empty:
        return "required"
    return "none" if default is None else f"`{default!r}`"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("statecheck-options", OptionsDirective)
    app.add_directive("statecheck-arguments", ArgumentsDirective)
    return {"version": "1", "parallel_read_safe": True}
