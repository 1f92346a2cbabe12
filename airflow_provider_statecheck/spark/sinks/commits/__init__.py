"""Two-phase commit of sinks: the commit log, the committer, and logs in a directory."""
