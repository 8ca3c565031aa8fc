"""Flower 1.41 as the network. No other part of the federation imports Flower."""
