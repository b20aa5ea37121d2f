"""TLS contexts for the gRPC port and for channels: TLS 1.2 or newer, ALPN `h2`.

An error in a file is one line that names the setting, the file and what to do.
"""

import ssl
from pathlib import Path

from bascule.errors import ConfigError


def _readable(setting: str, path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(
            f"{setting}: cannot read {path}: {error.strerror or error}; check the path and its permissions"
        ) from None


def _load_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    _readable("tls.cert", cert)
    _readable("tls.key", key)
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        if reason == "KEY_VALUES_MISMATCH":
            problem = "the key does not belong to the certificate; give the pair that was issued together"
        else:
            problem = (
                f"not a usable PEM pair ({reason}); the certificate comes first in tls.cert, unencrypted key in tls.key"
            )
        raise ConfigError(f"tls.cert {cert}, tls.key {key}: {problem}") from None


def _no_password() -> str:
    raise ConfigError("tls.key is encrypted with a passphrase; a broker needs an unencrypted key file")


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
    _load_pair(context, cert, key)
    if client_ca is not None:
        _load_ca(context, "tls.client.auth.ca", client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: str | None, cert: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """For a channel. Without `ca` the system's authorities are trusted."""
    context = ssl.create_default_context() if ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    if ca is not None:
        _load_ca(context, "tls.ca", ca)
    if (cert is None) != (key is None):
        raise ConfigError("tls.cert and tls.key belong together: give both or neither")
    if cert is not None and key is not None:
        _load_pair(context, cert, key)
    return context
