"""Keys and certificates of a federation: an authority of its own, the server's certificate, the keys of nodes.

FED/authority/ca.key, ca.crt    signs the server's certificates, rosters and catalogues; it belongs on no other machine
"""

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgrec.federation.common.arrays import write_private
from fedgrec.federation.common.errors import FederationError
from fedgrec.federation.common.network import CA
from fedgrec.federation.common.web import is_address

AUTHORITY, CA_KEY = "authority", "ca.key"
AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
SKEW = datetime.timedelta(hours=1)  # a node whose clock is behind must not refuse a fresh certificate


def pem(key: PrivateKeyTypes) -> bytes:
    none = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none)


def ssh_pair() -> tuple[bytes, bytes]:
    """A fresh key by which the SuperLink knows a node: the private and public files that Flower reads."""
    key, none, ssh = new_key(), serialization.NoEncryption(), serialization.PublicFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, none)
    return private, key.public_key().public_bytes(serialization.Encoding.OpenSSH, ssh)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


Authority = tuple[ec.EllipticCurvePrivateKey, x509.Certificate]


def authority(name: str) -> Authority:
    """A certificate authority for one federation."""
    key, certificate = _certificate(f"{name} authority", AUTHORITY_DAYS)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return key, certificate.add_extension(identifier, critical=False).sign(key, hashes.SHA384())


def as_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def write_authority(out: Path, authority: Authority) -> None:
    """Write an authority's files in FED."""
    key, certificate = authority
    (out / AUTHORITY).mkdir(mode=0o700, parents=True)
    write_private(out / AUTHORITY / CA_KEY, pem(key))
    write_private(out / AUTHORITY / CA, as_pem(certificate))


def open_authority(out: Path) -> Authority:
    """The authority of FED, with its key."""
    try:
        key = serialization.load_pem_private_key((out / AUTHORITY / CA_KEY).read_bytes(), None)
        certificate = x509.load_pem_x509_certificate((out / AUTHORITY / CA).read_bytes())
    except FileNotFoundError as error:
        raise FederationError(f"{error.filename} is missing: only where `init` ran can this be done") from None
    except ValueError as error:
        raise FederationError(f"{out / AUTHORITY} has no readable key and certificate ({error}): restore it") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key, certificate


def server_certificate(ca: Authority, hosts: list[str], days: int = SERVER_DAYS) -> Authority:
    """A fresh key and a certificate for these host names and addresses, signed by the authority."""
    key, issuer = ca
    own, certificate = _certificate(hosts[0], days, issuer.subject)
    names = [
        x509.IPAddress(ip_address(host)) if is_address(host) else x509.DNSName(host) for host in dict.fromkeys(hosts)
    ]
    for extension in (
        x509.SubjectAlternativeName(names),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()),
    ):
        certificate = certificate.add_extension(extension, critical=False)
    return own, certificate.sign(key, hashes.SHA384())


def _certificate(
    name: str, days: int, issuer: x509.Name | None = None
) -> tuple[ec.EllipticCurvePrivateKey, x509.CertificateBuilder]:
    """A fresh key, and its certificate before it is signed: without an issuer, that of an authority."""
    now, key, signs = datetime.datetime.now(datetime.UTC), new_key(), issuer is None
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    off = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        **dict.fromkeys((*off, "encipher_only", "decipher_only"), False),
    )
    return key, (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
        .add_extension(usage, critical=True)
    )
