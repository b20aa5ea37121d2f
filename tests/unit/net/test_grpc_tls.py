"""TLS on the gRPC port: who may come in, what the handler learns of them, and what is said about bad files."""

import asyncio
import contextlib
import datetime
import ipaddress
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc as grpcio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bascule import limits
from bascule.errors import ConfigError, Status, TlsRefused, Unavailable
from bascule.net.channel import Channel
from bascule.net.grpc import Call, GrpcServer
from bascule.net.tls import NATS_NAMES, client_context, server_context
from bascule.wire.grpc import frame


@dataclass
class Files:
    """A certificate authority and what it signed."""

    ca: str
    server_cert: str
    server_key: str
    client_cert: str
    client_key: str
    other_ca: str
    encrypted_key: str


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _write_key(key: ec.EllipticCurvePrivateKey, path: Path, password: bytes | None = None) -> str:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    return str(path)


def _issue(
    folder: Path, common_name: str, issuer: tuple[x509.Name, ec.EllipticCurvePrivateKey] | None
) -> tuple[str, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer_name, issuer_key = issuer or (_name(common_name), key)
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_name(common_name))
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(names, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    path = folder / f"{common_name}.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return str(path), key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    ca, ca_key = _issue(folder, "ca", None)
    other_ca, _ = _issue(folder, "other", None)
    server_cert, server_key = _issue(folder, "server", (_name("ca"), ca_key))
    client_cert, client_key = _issue(folder, "alice", (_name("ca"), ca_key))
    return Files(
        ca,
        server_cert,
        _write_key(server_key, folder / "server.key"),
        client_cert,
        _write_key(client_key, folder / "alice.key"),
        other_ca,
        _write_key(server_key, folder / "encrypted.key", b"secret"),
    )


async def who(call: Call) -> None:
    while await call.receive() is not None:
        call.write(frame((call.peer_common_name or "nobody").encode()))


async def echo(call: Call) -> None:
    await call.send(frame(await call.receive() or b""))


async def large(call: Call) -> None:
    for _ in range(32):
        await call.send(frame(bytes(65_531)))


@contextlib.asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[int]:
    server = GrpcServer({"/t.T/Who": who, "/t.T/Large": large, "/t.T/Echo": echo})
    port = await server.start("127.0.0.1", 0, tls=context)
    try:
        yield port
    finally:
        await server.close(Status.UNAVAILABLE, "", 1.0)


def test_a_client_with_a_certificate_is_known_by_its_common_name(files: Files) -> None:
    async def main() -> None:
        async with serving(server_context(files.server_cert, files.server_key, files.ca)) as port:
            tls = client_context(files.ca, files.client_cert, files.client_key)
            channel = await Channel.connect("localhost", port, tls=tls)
            assert await channel.unary("/t.T/Who", b"") == b"alice"
            call = channel.stream("/t.T/Large")
            total = 0
            while (part := await call.receive()) is not None:
                total += len(part)
            assert total == 32 * 65_536
            assert await channel.unary("/t.T/Echo", bytes(3_000_000)) == bytes(3_000_000)
            await channel.close()

    asyncio.run(main())


def test_a_real_grpc_client_agrees_on_http2_by_alpn(files: Files) -> None:
    async def main() -> None:
        async with serving(server_context(files.server_cert, files.server_key)) as port:
            credentials = grpcio.ssl_channel_credentials(Path(files.ca).read_bytes())
            async with grpcio.aio.secure_channel(f"localhost:{port}", credentials) as channel:
                assert await channel.unary_unary("/t.T/Who")(b"", timeout=10) == b"nobody"

    asyncio.run(main())


def test_clients_without_a_valid_certificate_are_refused_and_others_still_served(files: Files) -> None:
    async def main() -> None:
        async with serving(server_context(files.server_cert, files.server_key, files.ca)) as port:
            with pytest.raises((Unavailable, TlsRefused), match="cannot connect to"):
                await Channel.connect("localhost", port, tls=client_context(files.ca), timeout=2.0)
            with pytest.raises(TlsRefused, match="TLS failed"):
                await Channel.connect("localhost", port, tls=client_context(files.other_ca), timeout=2.0)
            with pytest.raises(Unavailable):
                await Channel.connect("localhost", port, timeout=2.0)
            tls = client_context(files.ca, files.client_cert, files.client_key)
            channel = await Channel.connect("localhost", port, tls=tls)
            assert await channel.unary("/t.T/Who", b"") == b"alice"
            await channel.close()

    asyncio.run(main())


def test_a_handshake_that_never_goes_on_is_ended(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_HANDSHAKE_TIMEOUT_S", 0.2)

    async def main() -> None:
        async with serving(server_context(files.server_cert, files.server_key)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01")
            with contextlib.suppress(OSError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    asyncio.run(main())


def test_unusable_files_are_named_with_the_way_out(files: Files, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    malformed = tmp_path / "garbage.pem"
    malformed.write_text("not a certificate")
    with pytest.raises(ConfigError, match=r"tls\.cert: cannot read .*missing\.pem: No such file"):
        server_context(missing, files.server_key)
    with pytest.raises(ConfigError, match=r"tls\.key: cannot read .*missing\.pem"):
        server_context(files.server_cert, missing)
    with pytest.raises(ConfigError, match="does not belong to the certificate"):
        server_context(files.server_cert, files.client_key)
    with pytest.raises(ConfigError, match="not a usable PEM pair"):
        server_context(str(malformed), files.server_key)
    with pytest.raises(ConfigError, match="encrypted with a passphrase"):
        server_context(files.server_cert, files.encrypted_key)
    with pytest.raises(ConfigError, match=r"tls\.client\.auth\.ca: .*garbage\.pem holds no certificate authority"):
        server_context(files.server_cert, files.server_key, str(malformed))
    with pytest.raises(ConfigError, match=r"tls\.ca"):
        client_context(missing)
    with pytest.raises(ConfigError, match="belong together"):
        client_context(files.ca, files.client_cert)
    with pytest.raises(ConfigError, match=r"^nats\.tls\.ca: cannot read"):
        client_context(missing, names=NATS_NAMES)
    with pytest.raises(ConfigError, match=r"^nats\.tls\.key .* is encrypted with a passphrase"):
        client_context(files.ca, files.server_cert, files.encrypted_key, names=NATS_NAMES)
    with pytest.raises(ConfigError, match=r"^nats\.tls\.cert .*, nats\.tls\.key .*: the key does not belong"):
        client_context(files.ca, files.server_cert, files.client_key, names=NATS_NAMES)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_key_is_named(files: Files, tmp_path: Path) -> None:
    locked = tmp_path / "locked.key"
    locked.write_bytes(Path(files.server_key).read_bytes())
    locked.chmod(0)
    with pytest.raises(ConfigError, match="Permission denied"):
        server_context(files.server_cert, str(locked))
