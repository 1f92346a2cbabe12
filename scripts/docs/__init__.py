"""Sphinx configuration and generated parts of the documentation."""
