"""
Exactly-once commit of the output of sinks.

The tasks of an increment write output that no reader sees. A checkpoint records it, and the sink commits it when the
checkpoint is complete; an attempt that restores the checkpoint repeats the commit, which changes nothing the second
time. In the order in which a commit passes them:

1. ``target_files.py``: the files that tasks write below the target, with the lineage of the sink in their names.
2. ``committing_sink.py``: the sink, which opens its destination, and commits or retracts output there.
3. ``committer.py``: the two phases, and what a destination must be able to do.
4. ``commit_log.py``: the log of a destination, which decides what is committed, and which attempts may still commit.
5. ``commit_files.py``: the log as files, for destinations that cannot change the output and the log atomically.
6. ``places.py`` and ``former_places.py``: output at a place that a later run has left.
"""
