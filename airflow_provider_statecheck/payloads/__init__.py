"""Job specifications of services with a mailbox, this package, and for a stage its application."""
