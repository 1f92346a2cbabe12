"""Operator state: lists and broadcast maps of a subtask."""
