"""Borders between two tables, compared with plain Spark."""
