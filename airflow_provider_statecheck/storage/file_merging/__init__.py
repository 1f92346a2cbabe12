"""File merging: stores the state of many streams in few physical files."""
