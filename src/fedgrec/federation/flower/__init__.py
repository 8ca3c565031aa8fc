"""Flower 1.41 as the network. Nothing outside of this folder imports Flower."""
