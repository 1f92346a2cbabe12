"""Handles of keyed and operator state, and their assignment to subtasks on restore."""
