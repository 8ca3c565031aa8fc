"""Measurements: ratios within one run on one machine, from medians of repetitions that take turns."""
