"""A federation in one process, for tests and for those who try things out."""
