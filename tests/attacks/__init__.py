"""Attacks on a federation, each as a test."""
