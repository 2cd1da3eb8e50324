"""The certificate of one box's relay: made by the keeper, trusted by nobody but the keeper."""

import datetime
import secrets
from typing import NamedTuple

from hutch.providers.kubernetes.relay import TOKEN_BYTES

_YEARS = 10
"""A box's certificate ends with the box; no clock of a node should end it before."""


class RelayKeys(NamedTuple):
    certificate: str
    key: str
    token: str


def new_keys(name: str) -> RelayKeys:
    """Return a new self-signed certificate with its key, and a token; takes about a millisecond."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # The clocks of two machines differ.
        .not_valid_after(now + datetime.timedelta(days=365 * _YEARS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return RelayKeys(
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        private.decode(),
        secrets.token_hex(TOKEN_BYTES // 2),
    )
