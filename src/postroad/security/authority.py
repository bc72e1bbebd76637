"""A private certificate authority for one overlay, made with the `cryptography` package.

It signs certificates of brokers and of clients. Keys are elliptic (P-256) and readable by their owner only; the extensions are
those that strict verification asks for (subject and authority key identifiers, key usage).
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from postroad.errors import CertificateError, CryptographyMissingError
from postroad.security.tls import BROKER_URI

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 398
CERTIFICATE_NAME: Final = "ca.pem"
KEY_NAME: Final = "ca.key"
_EARLIER: Final = timedelta(hours=1)  # for clocks that are behind


@dataclass(frozen=True, slots=True)
class Issued:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path
    expires: datetime


def create_authority(directory: Path, name: str = "Postroad private authority", *, days: int = AUTHORITY_DAYS) -> Issued:
    """Make a new authority; refuse to replace one, since every certificate it has signed would stop working."""
    _need_cryptography()
    from cryptography import x509  # noqa: PLC0415  # an extra
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    paths = (directory / CERTIFICATE_NAME, directory / KEY_NAME)
    for path in paths:
        if path.exists():
            raise CertificateError(f"{path} exists already; choose another directory")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    return _write(builder, key, key, *paths)


def issue(
    authority: Path, directory: Path, file_name: str, uri: str, *, addresses: Sequence[str] = (), days: int = CERTIFICATE_DAYS
) -> Issued:
    """Sign a certificate for a broker or client, named by its URI. `addresses` are host names or IP addresses it listens on.

    Only that of a broker may be used to listen.
    """
    _need_cryptography()
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    signer, signer_key = _read_authority(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
    names.extend(_address(each) for each in addresses)
    builder = _builder(_name(uri), signer.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    purposes = [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    if uri.startswith(BROKER_URI):
        purposes.append(x509.oid.ExtendedKeyUsageOID.SERVER_AUTH)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    identifier = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    own = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    builder = builder.add_extension(own, critical=False)
    directory.mkdir(parents=True, exist_ok=True)
    return _write(builder, key, signer_key, directory / f"{file_name}.pem", directory / f"{file_name}.key")


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401, PLC0415
    except ImportError as error:
        text = "making certificates needs the package `cryptography`: pip install 'postroad[security]'"
        raise CryptographyMissingError(text) from error


def _read_authority(directory: Path) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        certificate = x509.load_pem_x509_certificate((directory / CERTIFICATE_NAME).read_bytes())
        key = load_pem_private_key((directory / KEY_NAME).read_bytes(), None)
    except FileNotFoundError as error:
        raise CertificateError(f"there is no authority in {directory}; `postroad ca init {directory}` makes one") from error
    except (OSError, ValueError, TypeError) as error:
        raise CertificateError(f"the authority in {directory} cannot be read: {error}") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise CertificateError(f"the authority in {directory} was not made by `postroad ca init`")
    return certificate, key


def _name(text: str) -> x509.Name:
    from cryptography import x509  # noqa: PLC0415

    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text[:64])])


def _address(text: str) -> x509.GeneralName:
    from cryptography import x509  # noqa: PLC0415

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _builder(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    from cryptography import x509  # noqa: PLC0415

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509  # noqa: PLC0415

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(
    builder: x509.CertificateBuilder,
    key: EllipticCurvePrivateKey,
    signer: EllipticCurvePrivateKey,
    certificate_path: Path,
    key_path: Path,
) -> Issued:
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415

    certificate = builder.sign(signer, hashes.SHA256())
    secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    try:
        certificate_path.parent.mkdir(parents=True, exist_ok=True)
        key_path.unlink(missing_ok=True)
        with os.fdopen(os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret)
        certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    except OSError as error:
        raise CertificateError(f"cannot write {key_path.parent}: {error.strerror or error}") from error
    return Issued(certificate_path, key_path, certificate.not_valid_after_utc)
