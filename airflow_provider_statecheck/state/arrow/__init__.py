"""The state backend that keeps keyed state in sorted Arrow files on the checkpoint storage."""
