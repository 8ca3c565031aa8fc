"""What a server can find out although it sees only exact sums: attacks on the user's own data and options, scored."""
