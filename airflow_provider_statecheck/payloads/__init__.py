"""What the job specifications of services get: a mailbox, this package, and a stage."""
