"""Makes a federation's folders and keys, and starts its parts."""
