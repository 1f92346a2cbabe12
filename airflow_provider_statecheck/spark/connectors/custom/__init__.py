"""Sources and sinks of users."""
