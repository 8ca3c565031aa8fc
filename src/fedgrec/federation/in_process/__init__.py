"""A federation in one process, for tests, examples and audits of one's own federation."""
