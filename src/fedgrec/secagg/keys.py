"""What binds a key to its purpose: signatures of identities, and keys that two clients derive from an agreement."""

import hashlib
from collections.abc import Mapping, Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedgrec.secagg.errors import BadSignature, UnknownSender
from fedgrec.secagg.messages import Keys, Survivors
from fedgrec.secagg.prg import KEY_BYTES, Mask
from fedgrec.secagg.session import Session


def signed_part(session: Session, sender: int, mask_key: bytes, cipher_key: bytes) -> bytes:
    """What a client signs with its identity: these keys are its own, and only for this round."""
    return b"fedgrec secagg keys" + session.digest + sender.to_bytes(4, "big") + mask_key + cipher_key


def bind(context: bytes, clients: Sequence[int]) -> bytes:
    """A client's view of the round: the model, and the clients in it. Clients with different views share no keys."""
    names = b"".join(client.to_bytes(4, "big") for client in clients)
    return hashlib.sha256(len(context).to_bytes(4, "big") + context + names).digest()


def survivors_part(session: Session, bound: bytes, message: Survivors) -> bytes:
    """What a client signs to confirm the lists that it was given."""
    return b"fedgrec secagg survivors" + session.digest + bound + message.fields()


def derive(secret: X25519PrivateKey, public: bytes, purpose: bytes, session: Session, bound: bytes, *ids: int) -> bytes:
    """A 16-byte key that two clients share for one purpose, round, set of parameters, model and company."""
    try:
        agreed = secret.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a public key of small order agrees on zero with everybody
        raise BadSignature("a neighbour's public key is not a proper one") from error
    about = purpose + session.digest + bound
    return HKDF(hashes.SHA256(), KEY_BYTES, None, about + b"".join(i.to_bytes(4, "big") for i in ids)).derive(agreed)


def pair_mask(mine: X25519PrivateKey, me: int, public: bytes, other: int, session: Session, bound: bytes) -> Mask:
    """The mask that two clients share: the one with the lower id adds it, the other takes it away."""
    ids = sorted((me, other))
    return derive(mine, public, b"fedgrec secagg mask", session, bound, *ids), 1 if me < other else -1


def seed_mask(seed: bytes, session: Session, bound: bytes) -> bytes:
    """The key of a client's self mask."""
    about = b"fedgrec secagg self" + session.digest + bound
    return HKDF(hashes.SHA256(), KEY_BYTES, None, about).derive(seed)


def verify_survivors(
    session: Session, bound: bytes, lists: Survivors, signer: int, signature: bytes, roster: Mapping[int, bytes]
) -> None:
    """Refuses a confirmation that its alleged signer did not give for these lists."""
    try:
        Ed25519PublicKey.from_public_bytes(roster[signer]).verify(signature, survivors_part(session, bound, lists))
    except (InvalidSignature, ValueError):
        raise BadSignature(f"client {signer} did not confirm these lists of survivors") from None


def verify_keys(session: Session, keys: Keys, roster: Mapping[int, bytes]) -> None:
    """Refuses keys that were not signed for this round by the identity that the roster has for their sender."""
    if keys.sender not in roster:
        raise UnknownSender(f"client {keys.sender} is not on the roster")
    signed = signed_part(session, keys.sender, keys.mask_key, keys.cipher_key)
    try:
        Ed25519PublicKey.from_public_bytes(roster[keys.sender]).verify(keys.signature, signed)
    except (InvalidSignature, ValueError):
        raise BadSignature(f"the keys of client {keys.sender} are not signed by it for this round") from None
