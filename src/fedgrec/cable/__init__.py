"""What crosses the network cable and what both sides compute alike: uploads and broadcasts, a user's draws, noise in
shares, decoys. It imports `errors` alone: a method belongs in `methods`, a transport in `federation`.
"""
