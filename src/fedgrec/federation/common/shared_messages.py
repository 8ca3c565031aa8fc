"""Messages of secure aggregation that are the same for all nodes, so that the network carries them once.

In a complete graph the protocol tells each node the keys, and later the signatures, of all other nodes. The server adds
the node's own key or signature (`for_everybody`): then all nodes get the same bytes. The node takes its own part out
again (`without`) before the protocol sees and checks the message.
"""

from collections.abc import Mapping
from dataclasses import replace

from fedgrec.secagg.messages import Confirmations, Message, Neighbourhood, parse


def for_everybody(messages: Mapping[int, bytes]) -> dict[int, bytes]:
    """Messages to nodes: the same for all if each holds the parts of all other nodes, else unchanged."""
    parsed = [parse(message) for message in messages.values()]
    whole: Message | None = None
    if len(parsed) > 1:
        first, second = parsed[:2]  # what one lacks the other has
        if isinstance(first, Neighbourhood) and isinstance(second, Neighbourhood):
            keys = {key.sender: key for key in first.keys + second.keys}
            whole = replace(first, keys=tuple(keys[sender] for sender in sorted(keys)))
        elif isinstance(first, Confirmations) and isinstance(second, Confirmations):
            whole = replace(first, signatures=first.signatures | second.signatures)
    if whole is None or any(without(whole, node) != own for node, own in zip(messages, parsed, strict=True)):
        return dict(messages)
    return dict.fromkeys(messages, whole.pack())


def without(message: Message, node: int) -> Message:
    """A message less the part that came from this node itself."""
    if isinstance(message, Neighbourhood):
        return replace(message, keys=tuple(key for key in message.keys if key.sender != node))
    if isinstance(message, Confirmations):
        return replace(message, signatures={s: text for s, text in message.signatures.items() if s != node})
    return message
