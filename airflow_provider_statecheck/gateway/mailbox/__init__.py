"""Gateway through files of the checkpoint storage, for drivers that reach nothing else."""
