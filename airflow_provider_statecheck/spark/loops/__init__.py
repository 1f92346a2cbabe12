"""Loops over items, and loops that refine one DataFrame."""
