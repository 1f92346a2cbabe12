"""Default state backend: keyed state in sorted Arrow files on the checkpoint storage."""
