"""Certificates for a trial: an authority of one's own, and a server certificate that it signed.

Sites get the authority's certificate `ca.pem` and trust servers that show a certificate of it. An
organisation that has an authority already takes its own files instead.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.core.errors import ConfigError
from coterie.deploy.private_files import (
    check_private,
    make_folder,
    write_private,
    write_public,
)

_AUTHORITY_DAYS = 3650
_CLOCKS_DIFFER = timedelta(hours=1)  # a site whose clock is slow still takes a new certificate


@dataclass(frozen=True)
class Certificates:
    """The files of a server: the authority's certificate, its own, and its private key."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def within(cls, folder: Path) -> "Certificates":
        """Name the files as `make_certificates` names them."""
        return cls(folder / "ca.pem", folder / "server.pem", folder / "server.key")

    def check(self) -> None:
        """Refuse files that are missing, and a key that others can read."""
        for file in (self.ca, self.certificate):
            if not file.is_file():
                raise ConfigError(
                    f"there is no certificate {file}; 'coterie deploy certs' makes one for a trial"
                )
        check_private(self.key, "private key of the server")


def make_certificates(
    folder: Path, hosts: Sequence[str], days: int = 365, now: datetime | None = None
) -> Certificates:
    """Make an authority, or take the one in the folder, and a certificate for a server's names.

    `hosts` are all names and addresses by which sites call the server.
    """
    if not hosts:
        raise ConfigError("a server certificate needs a host name or address that sites will call")
    now = now or datetime.now(UTC)
    make_folder(folder)
    files = Certificates.within(folder)
    authority, authority_key = _authority(files.ca, folder / "ca.key", now)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder("Coterie server", authority.subject, key, now, days)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    write_private(files.key, _encode(key))
    write_public(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    return files


def _authority(
    file: Path, key_file: Path, now: datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Read the authority, or make it if there is none."""
    if file.exists() and key_file.exists():
        key = serialization.load_pem_private_key(key_file.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{key_file} is not a key that Coterie made; take another folder")
        return x509.load_pem_x509_certificate(file.read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Coterie trial authority")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder("Coterie trial authority", name, key, now, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    write_private(key_file, _encode(key))
    write_public(file, certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def _builder(
    subject: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    """Begin a certificate that is valid from an hour before `now` for `days`."""
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(host: str) -> x509.GeneralName:
    """Write a host as an address if it is one, as a name otherwise."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _encode(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
