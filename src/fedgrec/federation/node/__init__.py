"""The node's side of the cable: it keeps its users' data, and answers the server's messages."""
