"""Measurements: ratios within one run on one machine, medians of alternating repetitions."""
