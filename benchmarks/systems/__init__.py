"""Systems under test: each is a process that answers measurement commands as JSON lines."""
