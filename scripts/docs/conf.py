"""Sphinx configuration; ``make docs`` builds the documentation."""

from __future__ import annotations

project = "airflow-provider-statecheck"
copyright = "The authors, Apache License 2.0"
html_title = "statecheck"

extensions = ["myst_parser", "sphinx.ext.autodoc"]

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"

nitpicky = True

html_theme = "furo"
html_show_sphinx = False
html_copy_source = False
