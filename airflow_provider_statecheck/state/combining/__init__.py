"""Combination of partial results of one key, as Spark combines them."""
