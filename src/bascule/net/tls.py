"""TLS contexts for the gRPC port, for channels and for NATS: TLS 1.2 or newer, ALPN `h2`.

An error in a file is one line that names the setting, the file and what to do.
"""

import ssl
from pathlib import Path
from typing import NamedTuple

from bascule.errors import ConfigError


class Names(NamedTuple):
    """How the user calls the files that an error is about."""

    cert: str = "tls.cert"
    key: str = "tls.key"
    ca: str = "tls.ca"


CHANNEL_NAMES = Names()
NATS_NAMES = Names("nats.tls.cert", "nats.tls.key", "nats.tls.ca")
_SERVER_NAMES = Names(ca="tls.client.auth.ca")


def _readable(setting: str, path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(
            f"{setting}: cannot read {path}: {error.strerror or error}; check the path and its permissions"
        ) from None


def _load_pair(context: ssl.SSLContext, cert: str, key: str, names: Names) -> None:
    _readable(names.cert, cert)
    _readable(names.key, key)

    def no_password() -> str:
        raise ConfigError(f"{names.key} {key} is encrypted with a passphrase; give an unencrypted key file")

    try:
        context.load_cert_chain(cert, key, password=no_password)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        if reason == "KEY_VALUES_MISMATCH":
            problem = "the key does not belong to the certificate; give the pair that was issued together"
        else:
            problem = (
                f"not a usable PEM pair ({reason}); the certificate comes first in {names.cert}, an unencrypted key in "
                f"{names.key}"
            )
        raise ConfigError(f"{names.cert} {cert}, {names.key} {key}: {problem}") from None


def _load_ca(context: ssl.SSLContext, setting: str, ca: str) -> None:
    _readable(setting, ca)
    try:
        context.load_verify_locations(cafile=ca)
    except ssl.SSLError as error:
        raise ConfigError(
            f"{setting}: {ca} holds no certificate authority in PEM form ({error.reason or error})"
        ) from None


def server_context(cert: str, key: str, client_ca: str | None = None) -> ssl.SSLContext:
    """For the gRPC port. With `client_ca`, clients must show a certificate that it signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2"])
    _load_pair(context, cert, key, _SERVER_NAMES)
    if client_ca is not None:
        _load_ca(context, _SERVER_NAMES.ca, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    ca: str | None, cert: str | None = None, key: str | None = None, *, names: Names = CHANNEL_NAMES
) -> ssl.SSLContext:
    """For a channel, or for NATS. Without `ca` the system's authorities are trusted."""
    context = ssl.create_default_context() if ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if ca is not None:
        _load_ca(context, names.ca, ca)
    if (cert is None) != (key is None):
        raise ConfigError(f"{names.cert} and {names.key} belong together: give both or neither")
    if cert is not None and key is not None:
        _load_pair(context, cert, key, names)
    return context
