"""What a checkpoint holds of keyed and operator state: handles, and who gets which of them on restore."""
