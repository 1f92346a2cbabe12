"""Keyed state: what user functions see of it, and the tables in which a backend keeps it."""
