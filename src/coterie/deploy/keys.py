"""Keys of sites: each signs with its private key; the server's operator keeps the public ones.

A registry is a folder with one file `NAME.pub` for each site that may take part. The name of the
file is the name of the site, so nobody chooses a name but the operator. Removing a file ends the
site's access.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.core.errors import ConfigError
from coterie.deploy.private_files import (
    check_private,
    make_folder,
    write_private,
    write_public,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class KeyFiles:
    """The two halves of a site's key, as files."""

    private: Path
    public: Path


def check_name(name: str) -> str:
    """Return a site's name if it can also be a file name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the site's name {name!r} is not usable: take up to 64 letters, digits, '.', '_' or "
            "'-', beginning with a letter or digit"
        )
    return name


def make_key(folder: Path, name: str) -> KeyFiles:
    """Make a site's key: `NAME.key` stays at the site, `NAME.pub` goes to the server's operator."""
    files = KeyFiles(folder / f"{check_name(name)}.key", folder / f"{name}.pub")
    for file in (files.private, files.public):
        if file.exists():
            raise ConfigError(f"{file} exists; remove it if the site's key is to be replaced")
    make_folder(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(
        files.private,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
    write_public(files.public, encode_public_key(key.public_key()))
    return files


def encode_public_key(key: ec.EllipticCurvePublicKey) -> bytes:
    """Write a public key as PEM, the form in which clients send theirs."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def read_private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Read a site's private key, which nobody but its owner may be able to read."""
    check_private(file, "private key")
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{file} is not an unencrypted private key in PEM format; "
            "'coterie deploy keys' makes one"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{file} is not an elliptic-curve key; 'coterie deploy keys' makes one")
    return key


def read_registry(folder: Path) -> dict[str, bytes]:
    """Read the public keys of all registered sites, by name and in the order of names."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder} with the public keys of the sites")
    registry = {check_name(file.stem): _read_public(file) for file in sorted(folder.glob("*.pub"))}
    names: dict[bytes, str] = {}
    for name, key in registry.items():
        if key in names:
            raise ConfigError(
                f"the sites {names[key]!r} and {name!r} in {folder} have the same key; "
                "every site needs its own"
            )
        names[key] = name
    return registry


def _read_public(file: Path) -> bytes:
    try:
        key = serialization.load_pem_public_key(file.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file} is not a public key in PEM format") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{file} is not an elliptic-curve key; 'coterie deploy keys' makes one")
    return encode_public_key(key)
