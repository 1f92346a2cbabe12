"""Exactly once for any destination: what is committed, by whom, and what has to go."""
