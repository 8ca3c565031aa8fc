"""Keys and certificates of a federation: an authority of its own, the server's certificate, the keys of nodes."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
SKEW = datetime.timedelta(hours=1)  # a node whose clock is behind must not refuse a fresh certificate


def pem(key: PrivateKeyTypes) -> bytes:
    none = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none)


def ssh_pair(key: ec.EllipticCurvePrivateKey) -> tuple[bytes, bytes]:
    """The private and public files that Flower reads."""
    none, ssh = serialization.NoEncryption(), serialization.PublicFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, none)
    return private, key.public_key().public_bytes(serialization.Encoding.OpenSSH, ssh)


def network_key() -> ec.EllipticCurvePrivateKey:
    """The key by which the SuperLink knows a node."""
    return ec.generate_private_key(ec.SECP384R1())


def authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A certificate authority for one federation."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} authority")])
    certificate = (
        _certificate(subject, subject, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return key, certificate


def server_certificate(
    key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, hosts: list[str], days: int = SERVER_DAYS
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A fresh key and a certificate for these host names and addresses, signed by the authority."""
    own = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    names = x509.SubjectAlternativeName([_name(host) for host in dict.fromkeys(hosts)])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    signed = (
        _certificate(subject, certificate.subject, own.public_key(), days)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(key, hashes.SHA384())
    )
    return own, signed


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
