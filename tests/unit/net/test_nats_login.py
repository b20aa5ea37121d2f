"""Who a NATS connection is to a real nats-server: credentials, permissions, TLS."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from bascule.errors import StartError
from bascule.limits import MIB
from bascule.net.nats import Connection, NatsOptions
from bascule.testing.processes import free_port
from bascule.wire.nats import pub
from tests.harness.certificates import Authority
from tests.harness.nats_peers import Inbox, connection, server, until

# --- who we are --------------------------------------------------------------------------------------------


def test_user_and_password_from_options_or_url(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = 'authorization { user: "me", password: "p@ss:\\"word" }'
        async with server(config=config, folder=tmp_path) as running:
            async with connection(running.url, user="me", password='p@ss:"word') as bus:
                await bus.flush()
            url = running.url.replace("://", "://me:p%40ss%3A%22word@")
            async with connection(url, user="nobody", password="wrong") as bus:
                await bus.flush()

    asyncio.run(scenario())


def test_a_token_from_options_or_url(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server(config='authorization { token: "s3cret" }', folder=tmp_path) as running:
            async with connection(running.url, token="s3cret") as bus:
                await bus.flush()
            async with connection(running.url.replace("://", "://s3cret@")) as bus:
                await bus.flush()

    asyncio.run(scenario())


def test_wrong_credentials_are_an_error_at_once_in_one_line_without_the_secret(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = 'authorization { user: "me", password: "right" }'
        async with server(config=config, folder=tmp_path) as running:
            began = time.monotonic()
            with pytest.raises(StartError, match=r"nats\.user and nats\.password") as caught:
                await Connection.connect(NatsOptions((running.url,), user="me", password="wr0ng"), name="x")
            assert "wr0ng" not in str(caught.value)
            assert "\n" not in str(caught.value)
            assert "check" in str(caught.value)
            with pytest.raises(StartError, match="wants credentials"):
                await Connection.connect(NatsOptions((running.url,)), name="x")
            assert time.monotonic() - began < 5

    asyncio.run(scenario())


def test_credentials_that_become_wrong_later_are_tried_again_until_they_are_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def config(password: str) -> str:
        return f'authorization {{ user: "me", password: "{password}" }}'

    async def scenario() -> None:
        port = free_port()
        async with server(port, config("old"), tmp_path) as running:
            bus = await Connection.connect(NatsOptions((running.url,), user="me", password="old"), name="x")
        try:
            async with server(port, config("new"), tmp_path):
                await until(lambda: "refused our credentials" in bus.unavailable_reason)
            async with server(port, config("old"), tmp_path):
                await until(lambda: bus.connected)
                await bus.flush()
        finally:
            await bus.close()

    asyncio.run(scenario())
    assert "refused our credentials" in caplog.text


def test_a_refused_subscription_is_logged_and_the_rest_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        users = '{ user: "me", password: "p", permissions: { subscribe: ["ok.>"], publish: ["ok.>"] } }'
        config = f"authorization {{ users: [ {users} ] }}"
        async with (
            server(config=config, folder=tmp_path) as running,
            connection(running.url, user="me", password="p") as bus,
        ):
            allowed, denied = Inbox(), Inbox()
            bus.subscribe(b"ok.1", allowed)
            bus.subscribe(b"secret", denied)
            for _ in range(50):
                bus.send(pub(b"secret", b"x"))
            bus.send(pub(b"ok.1", b"x"))
            await bus.flush()
            assert bus.connected
            assert allowed.payloads == [b"x"]
            assert denied.payloads == []

    asyncio.run(scenario())
    assert "Permissions Violation for Subscription" in caplog.text
    assert caplog.text.count("Permissions Violation for Publish") == 1, "one line for the same complaint"


# --- TLS ---------------------------------------------------------------------------------------------------


def tls_config(authority: Authority, verify: bool = False) -> str:
    cert, key = authority.issue("server")
    client = f', ca_file: "{authority.path}", verify: true' if verify else ""
    return f'tls {{ cert_file: "{cert}", key_file: "{key}"{client} }}'


def test_tls_after_info_carries_messages_of_every_size(tmp_path: Path) -> None:
    async def scenario() -> None:
        authority = Authority(tmp_path)
        config = tls_config(authority) + "\nmax_payload: 4MB"
        async with (
            server(config=config, folder=tmp_path) as running,
            connection(running.url.replace("nats://", "tls://"), tls=authority.context()) as bus,
        ):
            inbox = Inbox()
            bus.subscribe(b"s", inbox)
            payloads = [b"", b"x", os.urandom(3 * MIB), b"y" * 100_000, b"z"] * 2
            for payload in payloads:
                bus.send(pub(b"s", payload))
            await bus.flush()
            assert inbox.payloads == payloads

    asyncio.run(scenario())


def test_a_certificate_we_do_not_trust_is_an_error_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        (tmp_path / "other").mkdir()
        unknown_broker = Authority(tmp_path / "other").context()
        async with server(config=tls_config(Authority(tmp_path)), folder=tmp_path) as running:
            for tls in (unknown_broker, None):  # without a context the system's authorities decide
                with pytest.raises(StartError, match=r"certificate not accepted.*nats\.tls\.ca"):
                    await Connection.connect(NatsOptions((running.url,), tls=tls), name="x")

    asyncio.run(scenario())


def test_a_server_that_wants_client_certificates_gets_ours_or_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        authority = Authority(tmp_path)
        async with server(config=tls_config(authority, verify=True), folder=tmp_path) as running:
            with pytest.raises(StartError, match=r"nats\.tls\.cert"):
                await Connection.connect(NatsOptions((running.url,), tls=authority.context()), name="x")
            context = authority.context()
            cert, key = authority.issue("client")
            context.load_cert_chain(cert, key)
            async with connection(running.url, tls=context) as bus:
                await bus.flush()

    asyncio.run(scenario())


def test_we_never_fall_back_to_plain_text_when_tls_was_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with server() as running:
            with pytest.raises(StartError, match="does not offer TLS"):
                await Connection.connect(
                    NatsOptions((running.url.replace("nats://", "tls://"),), password="p", user="u"), name="x"
                )

    asyncio.run(scenario())
