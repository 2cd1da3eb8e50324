"""A local certificate authority: a certificate for a domain and every name below it, made on this machine.

Host names of ports need a wildcard certificate, which no public authority gives for names such as `hutch.test`. The
authority's own certificate is what clients have to trust; its key never leaves the state directory.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from hutch.config import directories
from hutch.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 397
"""Clients refuse longer lives."""
_RENEW_DAYS = 30
_MAX_DOMAIN = 200


class Certificate(NamedTuple):
    """The files of a certificate, its key, and of the authority that clients have to trust."""

    chain: Path
    key: Path
    authority: Path


def wildcard_certificate(state_dir: Path, domain: str) -> Certificate:
    """Return the certificate for `domain` and `*.domain`, which is made if there is none or it ends soon.

    Raises:
        Invalid: This is no domain.
        Unavailable: The package that makes certificates is not installed.
    """
    name = domain.lower().rstrip(".")
    if len(name) > _MAX_DOMAIN or not all(part.replace("-", "a").isalnum() for part in name.split(".")):
        raise Invalid(f"{domain[:80]!r} is no domain", op="serve", remedy="give one such as hutch.test")
    directory = state_dir / "tls"
    directories.make(directory)
    files = Certificate(directory / f"{name}.pem", directory / f"{name}.key", directory / "authority.pem")
    if not _is_valid(files):
        _make(files, directory / "authority.key", name)
    return files


def _is_valid(files: Certificate) -> bool:
    if not all(path.exists() for path in files):
        return False
    x509 = _x509()
    until: datetime = x509.load_pem_x509_certificate(files.chain.read_bytes()).not_valid_after_utc
    return until > datetime.now(UTC) + timedelta(days=_RENEW_DAYS)


def _x509() -> ModuleType:
    """Return the package that makes certificates, which only servers with a wildcard name need."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise Unavailable(
            "certificates cannot be made: the package cryptography is not installed", op="serve", retryable=False,
            remedy="pip install cryptography, or give --tls-cert and --tls-key",
        ) from error  # fmt: skip
    return x509


def _make(files: Certificate, authority_key: Path, domain: str) -> None:
    """Make the certificate, and the authority if there is none yet."""
    x509 = _x509()
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if files.authority.exists() and authority_key.exists():
        issuer = x509.load_pem_x509_certificate(files.authority.read_bytes())
        signer = load_pem_private_key(authority_key.read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
    else:
        signer = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Hutch on this machine")])
        builder = _builder(name, name, signer, AUTHORITY_DAYS)
        issuer = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
            signer, hashes.SHA256()
        )
        _write(authority_key, _pem_key(signer))
        _write(files.authority, _pem(issuer), mode=0o644)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, domain[:64])])
    names = x509.SubjectAlternativeName([x509.DNSName(domain), x509.DNSName(f"*.{domain}")])
    builder = _builder(subject, issuer.subject, key, CERTIFICATE_DAYS).add_extension(names, critical=False)
    made = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True).sign(
        signer, hashes.SHA256()
    )
    _write(files.key, _pem_key(key))
    _write(files.chain, _pem(made) + _pem(issuer), mode=0o644)


def _builder(
    subject: "x509.Name", issuer: "x509.Name", key: "EllipticCurvePrivateKey", days: int
) -> "x509.CertificateBuilder":
    now = datetime.now(UTC)
    builder: x509.CertificateBuilder = _x509().CertificateBuilder(
        subject_name=subject, issuer_name=issuer, public_key=key.public_key()
    )
    builder = builder.serial_number(_x509().random_serial_number())
    return builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=days))


def _pem(certificate: "x509.Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_key(key: "EllipticCurvePrivateKey") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file as a whole: a crash leaves the old one or the new one."""
    draft = path.with_suffix(".draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    draft.rename(path)
