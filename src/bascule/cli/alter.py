"""`bascule stream alter`: the settings of a stream that is there."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import click

from bascule.cli.cluster import JsonOption
from bascule.cli.connect import ServerOption, Servers, connected, missing_stream_explained
from bascule.cli.tables import print_json
from bascule.client.settings import SETTING_FIELDS, StreamSettings
from bascule.node.config.durations import format_duration, is_plain_number, parse_duration
from bascule.wire.pb import admin_pb2 as pb

HINT = "`bascule stream list` shows those there are"

SETTINGS = {
    "retention.max.bytes": "retention_max_bytes",
    "retention.max.messages": "retention_max_messages",
    "retention.max.age": "retention_max_age_ms",
    "cleaner.interval": "cleaner_interval_ms",
    "segment.max.bytes": "segment_max_bytes",
    "segment.max.age": "segment_max_age_ms",
    "compact.enabled": "compact_enabled",
    "compact.max.goroutines": "compact_max_goroutines",
    "compact.min.lag": "compact_min_lag_ms",
    "compact.tombstone.delay": "compact_tombstone_delay_ms",
    "auto.pause.time": "auto_pause_time_ms",
    "auto.pause.disable.if.subscribers": "auto_pause_disable_if_subscribers",
    "min.isr": "min_isr",
    "concurrency.control": "optimistic_concurrency_control",
    "flatbuffers.draft": "flatbuffers_draft",
}
"""As the configuration names the brokers' own, below `streams`; and their names in Python."""
FIXED = {
    "encryption": "create another stream",
    "subject": "create another stream",
    "group": "create another stream",
    "partitions": "create another stream with more of them",
    "replication.factor": "create another stream with more replicas",
}
HINTED = "SETTING=VALUE"
SWITCHES = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}
IS_SWITCH = (
    "compact_enabled",
    "auto_pause_disable_if_subscribers",
    "optimistic_concurrency_control",
    "flatbuffers_draft",
)
IS_INT32 = ("compact_max_goroutines", "min_isr")
MOST_OF_INT32, MOST_OF_INT64 = (1 << 31) - 1, (1 << 63) - 1
MS = 1_000_000


@click.command(
    epilog="Example: bascule stream alter orders retention.max.age=24h min.isr=2 --reset segment.max.bytes",
)
@click.argument("name", metavar="STREAM")
@click.argument("given", nargs=-1, metavar="[SETTING=VALUE]...")
@click.option("--reset", multiple=True, metavar="SETTING", help="Use the brokers' own value again. May be repeated.")
@JsonOption
@ServerOption
def alter(name: str, given: tuple[str, ...], reset: tuple[str, ...], as_json: bool, server: Servers) -> None:
    """Change settings of STREAM; they are in use when this returns.

    A setting is named as in the brokers' configuration, without `streams.`: retention.max.age=24h,
    retention.max.bytes=1073741824, auto.pause.time=10m, concurrency.control=on; and min.isr=2. A change of min.isr,
    concurrency.control or flatbuffers.draft begins a new leader epoch: publishers wait for a moment.
    """
    if not given and not reset:
        raise click.UsageError("nothing is to be changed: name SETTING=VALUE, or --reset SETTING")
    settings = settings_given(given)
    names = [_named(each, "--reset") for each in reset]

    async def ask() -> pb.StreamSettings:
        async with connected(server) as client:
            return await client.admin.alter_stream(name, reset=names, **settings)

    with missing_stream_explained(HINT):
        answer = asyncio.run(ask())
    own = settings_of(answer)
    if as_json:
        print_json(own)
    else:
        click.echo(f"{name} has now: {', '.join(shown(own)) or 'no settings of its own'}")


def settings_given(texts: tuple[str, ...]) -> StreamSettings:
    """From SETTING=VALUE, each at most once."""
    settings: dict[str, int | bool] = {}
    for text in texts:
        setting, value = _setting(text)
        if setting in settings:
            raise click.BadParameter(f"{text.partition('=')[0]} is given twice", param_hint=HINTED)
        settings[setting] = value
    return cast(StreamSettings, settings)


def _named(text: str, hinted: str) -> str:
    if text in SETTINGS:
        return SETTINGS[text]
    if text in FIXED:
        raise click.BadParameter(f"{text} of a stream cannot be altered: {FIXED[text]}", param_hint=hinted)
    raise click.BadParameter(f"{text!r} is no setting: there are {', '.join(SETTINGS)}", param_hint=hinted)


def _setting(text: str) -> tuple[str, int | bool]:
    setting, equals, value = text.partition("=")
    name = _named(setting, HINTED)
    if not equals:
        raise click.BadParameter(f"{text!r} is not SETTING=VALUE", param_hint=HINTED)
    try:
        return name, _value(name, value)
    except (KeyError, ValueError):
        kind = (
            "true or false" if name in IS_SWITCH else "a time like 24h or 30s" if name.endswith("_ms") else "a number"
        )
        raise click.BadParameter(f"{value!r} is no value of {setting}: it is {kind}", param_hint=HINTED) from None


def _value(name: str, text: str) -> int | bool:
    """Raises KeyError or ValueError."""
    if name in IS_SWITCH:
        return SWITCHES[text.lower()]
    if name.endswith("_ms"):
        duration_ns = parse_duration(text)
        if duration_ns and (duration_ns < MS or is_plain_number(text)):
            raise ValueError  # 3600 would be nanoseconds, and so none at all
        return duration_ns // MS
    number = int(text)
    if not 0 <= number <= (MOST_OF_INT32 if name in IS_INT32 else MOST_OF_INT64):
        raise ValueError
    return number


def settings_of(answer: pb.StreamSettings) -> dict[str, Any]:
    """Those that are set, under their names here; times in milliseconds."""
    values = {field.name: value for field, value in answer.ListFields()}
    fields = {setting: SETTING_FIELDS[name] for setting, name in SETTINGS.items()}
    return {setting: values[field] for setting, field in fields.items() if field in values}


def shown(settings: dict[str, Any]) -> list[str]:
    return [f"{name}={_text(name, value)}" for name, value in settings.items()]


def _text(name: str, value: int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return format_duration(value * MS) if SETTINGS[name].endswith("_ms") else str(value)
