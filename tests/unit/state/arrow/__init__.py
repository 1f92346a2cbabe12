"""Keyed state in Arrow files."""
