"""Operator state: lists and maps that belong to a subtask and not to a key."""
