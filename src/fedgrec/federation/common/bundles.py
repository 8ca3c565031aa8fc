"""Bundles: the packets for, or from, many members of the roster as one packet, for gateways whose users mask.

who      nothing           → the places on the roster of the users that a gateway hosts; a plain node answers none
bundle   a packet for each → each one's answer; parts that are the same for all, such as the model, travel once
"""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.packets import BUNDLE, Packet

MEMBERS, PARTS = "members", "parts"


def pack(parts: Mapping[int, Packet]) -> Packet:
    """All parts as one packet; an array that several parts share is in it once."""
    numbers: dict[int, str] = {}
    blobs: dict[str, bytes] = {}
    arrays: dict[str, NDArray[Any]] = {}
    lines = []
    for member, part in parts.items():
        for array in part.arrays.values():
            arrays[numbers.setdefault(id(array), str(len(numbers)))] = array
        blobs |= {f"{member}.{name}": blob for name, blob in part.blobs.items()}
        where = {name: numbers[id(array)] for name, array in part.arrays.items()}
        lines.append([member, part.kind, part.header, list(part.blobs), where])
    return Packet(BUNDLE, {PARTS: lines}, blobs, arrays)


def unpack(bundle: Packet) -> dict[int, Packet]:
    """Each member's packet. The sender is not trusted, so everything in the bundle is checked."""
    parts: dict[int, Packet] = {}
    try:
        for member, kind, header, names, where in bundle.header[PARTS]:
            blobs = {name: bundle.blobs[f"{member}.{name}"] for name in names}
            arrays = {name: bundle.arrays[number] for name, number in where.items()}
            if type(member) is not int or member in parts or type(kind) is not str or type(header) is not dict:
                raise ValueError
            parts[member] = Packet(kind, header, blobs, arrays)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise FederationError("a bundle of packets came in that cannot be taken apart") from None
    return parts
