"""The driver: its session and thread, what it needs, and what it is handed."""
