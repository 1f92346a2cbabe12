"""Exactly-once commits of output: the sink, the destination, the log, and the files that they write."""
