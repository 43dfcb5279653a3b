# SPDX-License-Identifier: Apache-2.0
"""A certificate of the server's own, for trials and closed networks: clients trust it by its file."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from heatfhe.errors import ConfigError, MissingExtraError
from heatfhe.files import atomic_write

CERTIFICATE, KEY = "certificate.pem", "key.pem"
_DAYS, _LEFT = 365, timedelta(days=7)


def self_signed(folder: Path, hosts: Sequence[str]) -> tuple[Path, Path]:
    """Certificate and key in ``folder``, for these names or addresses; what is there stays while it does for them.

    The key is made at mode 0600. Clients that trusted a certificate need the new one once it is made anew: for another
    name, or in the week before it ends.
    """
    certificate, key = folder / CERTIFICATE, folder / KEY
    if certificate.is_file() and key.is_file() and _does(certificate.read_bytes(), hosts):
        return certificate, key
    made, secret = _made(hosts)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path, data, mode in ((key, secret, 0o600), (certificate, made, 0o644)):
        with atomic_write(path) as f:
            os.chmod(f.fileno(), mode)
            f.write(data)
    return certificate, key


def _library() -> Any:
    try:
        from cryptography import x509
    except ModuleNotFoundError as err:
        raise MissingExtraError("native", needed_by="heat serve --self-signed") from err
    return x509


def _does(data: bytes, hosts: Sequence[str]) -> bool:
    """Whether a certificate lasts and names every host."""
    x509 = _library()
    try:
        found = x509.load_pem_x509_certificate(data)
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    return found.not_valid_after_utc - datetime.now(timezone.utc) > _LEFT and set(_names(hosts)) <= set(names)


def _names(hosts: Sequence[str]) -> list[Any]:
    x509, found = _library(), []
    for host in hosts:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
            continue
        except ValueError:
            pass
        try:
            found.append(x509.DNSName(host))
        except ValueError as err:
            raise ConfigError(f"{host!r} is neither a host's name nor its address; give --self-signed one") from err
    return found


def _made(hosts: Sequence[str]) -> tuple[bytes, bytes]:
    """A new key and a certificate that it signs for itself, in PEM."""
    x509 = _library()
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if not hosts or any(not host.strip() for host in hosts):
        raise ConfigError("a certificate needs the name by which clients reach the server; give --self-signed one")
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0][:64])])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number())
    made = made.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=_DAYS))
    made = made.add_extension(x509.SubjectAlternativeName(_names(hosts)), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), key.private_bytes(*form)
