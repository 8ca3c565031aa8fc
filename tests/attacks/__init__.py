"""Attacks on a federation, each as a test that says what is tried and what becomes of it."""
