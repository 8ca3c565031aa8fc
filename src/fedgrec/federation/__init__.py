"""A real federation: the same verbs over a network.

The coordinator (server) and the node (a device, or a gateway with many users) exchange packets through a transport; the
algorithm is the one in `methods`, the sums are those of `secagg`, and nothing here knows either from the inside.
"""
