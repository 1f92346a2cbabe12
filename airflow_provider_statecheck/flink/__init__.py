"""Flink's coordinator for programs with operators of their own, which only the hook reaches."""
