"""The server's side of the cable: it asks nodes for secure sums, and keeps the model."""
