"""A real federation: the same verbs over a network. It imports `studies` and below; its rooms mirror the network cable.

    setup         makes a federation's folders and keys, and starts its parts
    flower        Flower as the network
    node          a node's side of the cable       server       the server's side
    common        what both sides know: packets, plans of sums, files

Imports point down this list. `node` and `server` never import each other; all that they know of each other is in
`common`. The algorithm is in `fedgrec.methods` and the secure sums are in `fedgrec.secagg`.
"""
