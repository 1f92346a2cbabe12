"""The other sides of comparisons, each run in a process of its own."""
