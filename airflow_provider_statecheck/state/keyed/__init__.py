"""Keyed state: states of user functions, and tables of backends."""
