"""A federation in one process, for tests and experiments."""
