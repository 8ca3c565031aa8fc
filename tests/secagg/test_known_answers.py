"""Published test vectors for the primitives that this package calls, and frozen answers for what it builds on them."""

import hashlib
import hmac
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedgrec.secagg import Client, Session, Stage, ring
from fedgrec.secagg import client as client_module
from fedgrec.secagg import keys as keys_module
from fedgrec.secagg.errors import BadInput, BadSignature
from fedgrec.secagg.keys import derive, pair_mask, seed_mask, signed_part, verify_keys
from fedgrec.secagg.messages import Keys
from fedgrec.secagg.prg import _key_stream, add_masks, mask_parts
from tests.secagg.rounds import Round, random_vectors, session

h = bytes.fromhex
FIXED = Session(bytes(range(16)), ((1000, 32),), users=400, neighbours=48, threshold=33)

# RFC 7748, section 6.1.
ALICE = X25519PrivateKey.from_private_bytes(h("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
BOB = X25519PrivateKey.from_private_bytes(h("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
ALICE_PUBLIC = h("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB_PUBLIC = h("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
AGREED = h("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")


# --------------------------------------------------------------------------------------- the primitives


def x25519(scalar: bytes, u: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(scalar).exchange(X25519PublicKey.from_public_bytes(u))


@pytest.mark.parametrize(
    ("scalar", "u", "result"),  # RFC 7748, section 5.2
    [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_x25519(scalar, u, result) -> None:
    assert x25519(h(scalar), h(u)) == h(result)


def test_x25519_a_thousand_times() -> None:
    k = u = b"\x09" + bytes(31)
    for _ in range(1000):
        k, u = x25519(k, u), k
    assert k == h("684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51")


def hkdf(secret: bytes, info: bytes, size: int = 16, salt: bytes = bytes(32)) -> bytes:
    """RFC 5869 with SHA-256, written from its text; up to 64 bytes."""
    extracted = hmac.digest(salt, secret, hashlib.sha256)
    first = hmac.digest(extracted, info + b"\x01", hashlib.sha256)
    return (first + hmac.digest(extracted, first + info + b"\x02", hashlib.sha256))[:size]


def test_hkdf() -> None:
    """RFC 5869, test case 1: for the library, and for `hkdf` above, which checks the package's keys below."""
    secret, salt, info = h("0b" * 22), h("000102030405060708090a0b0c"), h("f0f1f2f3f4f5f6f7f8f9")
    result = h("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")
    assert HKDF(hashes.SHA256(), 42, salt, info).derive(secret) == result
    assert hkdf(secret, info, 42, salt) == result


def test_key_stream() -> None:
    """NIST SP 800-38A, F.5.1: a stream that starts at a block other than the first."""
    stream = _key_stream(h("2b7e151628aed2a6abf7158809cf4f3c"), 0xF0F1F2F3F4F5F6F7F8F9FAFBFCFDFEFF)
    plain = h(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    assert stream.update(plain) == h(
        "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee"
    )


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_mask(bits) -> None:
    """AES-128 of blocks 0, 1 and 2 under key 0: H, tag and text of McGrew and Viega's GCM test cases 1 and 2."""
    stream = h("66e94bd4ef8a2c3b884cfa59ca342b2e58e2fccefa7e3061367f1d57a4e7455a0388dace60b6a392f328c2b971b2fe78")
    words = np.zeros(48 * 8 // bits, ring.container(bits))
    add_masks(words, [(bytes(16), 1)])
    assert words.tobytes() == stream
    assert int(words[0]) == int.from_bytes(stream[: bits // 8], "little")
    add_masks(words, [(bytes(16), -1)])
    assert not words.any()


def test_a_part_begins_with_a_block_of_the_stream() -> None:
    """The same stream: one word of 12 bits takes the first block, the next part begins with the second."""
    parts = ring.zeros(((1, 12), (2, 64), (1, 8)))
    mask_parts(parts, [(bytes(16), 1)])
    assert [part.tobytes() for part in parts] == [h("66e9"), h("58e2fccefa7e3061367f1d57a4e7455a"), h("03")]


def test_a_mask_key_of_another_size_is_refused() -> None:
    for size in (4, 15, 24, 32):  # AES would take 24 and 32
        with pytest.raises(BadInput):
            add_masks(np.zeros(4, "<u4"), [(bytes(size), 1)])


def test_sealed_share(monkeypatch) -> None:
    """McGrew and Viega's GCM test case 2, whose nonce is zero like ours."""
    client = Round(session(3, 1, 2), random_vectors(3, 1)).until(Stage.MASKED).clients[0]
    monkeypatch.setattr(client_module, "derive", lambda *_: bytes(16))
    monkeypatch.setattr(Client, "_label", lambda *_: b"")
    text = h("0388dace60b6a392f328c2b971b2fe78ab6e47d42cec13bdf53a67b21257bddf")
    assert client._seal(1, bytes(16)) == text
    assert client._open(1, text) == bytes(16)


def test_gcm_with_a_label() -> None:
    """McGrew and Viega's test case 4."""
    key, nonce = h("feffe9928665731c6d6a8f9467308308"), h("cafebabefacedbaddecaf888")
    plain = h(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    assert AESGCM(key).encrypt(nonce, plain, h("feedfacedeadbeeffeedfacedeadbeefabaddad2")) == h(
        "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
        "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e0915bc94fbc3221a5db94fae95ae7121a47"
    )


@pytest.mark.parametrize(
    ("secret", "public", "message", "signature"),  # RFC 8032, section 7.1, tests 1 to 3
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
            "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ),
    ],
)
def test_signature(secret, public, message, signature, monkeypatch) -> None:
    for module in (client_module, keys_module):  # who signs, and who verifies
        monkeypatch.setattr(module, "signed_part", lambda *_: h(message))
    client = Client(FIXED, 0, Ed25519PrivateKey.from_private_bytes(h(secret)), {0: h(public)})
    assert client.start().endswith(h(signature))
    keys = Keys(FIXED.round_id, 0, bytes(32), bytes(32), h(signature))
    verify_keys(FIXED, keys, {0: h(public)})
    with pytest.raises(BadSignature):
        verify_keys(FIXED, keys, {0: h(public)[::-1]})


# ------------------------------------------------------------------------------- what is made of them

SEED = bytes(range(32))
FROZEN = {
    "session": "5c2820c714abd3538c2341decbf73d174399fb892b66b0992a5703a8856fe5a0",
    "derived": "09ff383d296458bf3258caad0abab01f",
    "pair": "91c45aae1a28b769df42ac0e240767da",
    "self": "11d8da42858c98ae51dde502116dd940",
    "stream": "74b5e8a74a129e73f9b61c4e521154b0",
}


def answers() -> dict[str, str]:
    """The whole derivation, from fixed keys, session and model to the first words of a mask."""
    pair, sign = pair_mask(ALICE, 3, BOB_PUBLIC, 7, FIXED, b"model")
    words = np.zeros(4, "<u4")
    add_masks(words, [(pair, sign)])
    return {
        "session": FIXED.digest.hex(),
        "derived": derive(ALICE, BOB_PUBLIC, b"fedgrec secagg share", FIXED, b"model", 3, 7).hex(),
        "pair": pair.hex(),
        "self": seed_mask(SEED, FIXED, b"model").hex(),
        "stream": words.tobytes().hex(),
    }


def test_keys_are_the_frozen_ones() -> None:
    """Clients of different releases must agree: a change here is a new version of the protocol."""
    assert answers() == FROZEN


def test_keys_are_what_the_published_agreement_gives() -> None:
    """RFC 7748's agreed secret through the HKDF above, with everything that a key is bound to spelled out."""
    about = FIXED.digest + b"model"
    ids = b"\0\0\0\3" + b"\0\0\0\7"
    assert answers()["derived"] == hkdf(AGREED, b"fedgrec secagg share" + about + ids).hex()
    assert answers()["pair"] == hkdf(AGREED, b"fedgrec secagg mask" + about + ids).hex()
    assert answers()["self"] == hkdf(SEED, b"fedgrec secagg self" + about).hex()
    assert ALICE.public_key().public_bytes_raw() == ALICE_PUBLIC


def test_what_is_signed_and_what_a_share_is_labelled_with() -> None:
    assert signed_part(FIXED, 3, ALICE_PUBLIC, BOB_PUBLIC) == (
        b"fedgrec secagg keys" + FIXED.digest + b"\0\0\0\3" + ALICE_PUBLIC + BOB_PUBLIC
    )
    client = Client(FIXED, 3, Ed25519PrivateKey.generate(), {})
    assert client._label(3, 7) == FIXED.digest + b"shares" + b"\0\0\0\3" + b"\0\0\0\7"


def test_the_two_directions_of_a_pair_have_different_keys() -> None:
    """The nonce is constant: under one key, the difference of two shares would show."""
    run = Round(session(3, 1, 2), random_vectors(3, 1)).until(Stage.MASKED)
    there, back = run.clients[0]._seal(1, bytes(66)), run.clients[1]._seal(0, bytes(66))
    assert there[:66] != back[:66]


def test_the_two_of_a_pair_share_a_mask_of_opposite_signs() -> None:
    mine, other = (
        pair_mask(ALICE, 3, BOB_PUBLIC, 7, FIXED, b"model"),
        pair_mask(BOB, 7, ALICE_PUBLIC, 3, FIXED, b"model"),
    )
    assert mine == (other[0], -other[1])
    assert mine[1] == 1


def test_a_truncated_secret_gives_other_keys(monkeypatch) -> None:
    """Mutation: a key from 32 bits of the secret; all streams still look random."""
    monkeypatch.setattr(
        keys_module,
        "HKDF",
        lambda *how: SimpleNamespace(derive=lambda secret: HKDF(*how).derive(secret[:4])),
    )
    mutant = answers()
    assert all(mutant[key] != FROZEN[key] for key in ("derived", "pair", "self", "stream"))


def test_every_input_changes_the_keys() -> None:
    sessions = [
        FIXED,
        replace(FIXED, round_id=bytes(16)),
        replace(FIXED, rings=((1001, 32),)),
        replace(FIXED, rings=((500, 32), (500, 32))),
        replace(FIXED, rings=((500, 32), (500, 30))),
        replace(FIXED, rings=((500, 30), (500, 32))),
        replace(FIXED, users=401),
        replace(FIXED, neighbours=50),
        replace(FIXED, threshold=34),
        replace(FIXED, rings=((1000, 64),)),
    ]
    pairs = [pair_mask(ALICE, 3, BOB_PUBLIC, 7, session, model)[0] for session in sessions for model in (b"", b"model")]
    pairs += [pair_mask(ALICE, 3, BOB_PUBLIC, 8, FIXED, b"")[0], pair_mask(ALICE, 3, ALICE_PUBLIC, 7, FIXED, b"")[0]]
    pairs += [derive(ALICE, BOB_PUBLIC, b"fedgrec secagg share", FIXED, b"", *ids) for ids in ((3, 7), (7, 3))]
    selves = [seed_mask(SEED, session, model) for session in sessions for model in (b"", b"model")]
    keys = pairs + selves + [seed_mask(SEED[::-1], FIXED, b"")]
    assert len(set(keys)) == len(keys)
