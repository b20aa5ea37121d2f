"""`bascule server`: read the configuration, set up logging, and run the broker until SIGTERM or SIGINT.

The flags are those of the Go server, taken from the table of settings. Go programs read `-id x`, `--id x`,
`-id=x` and `--embedded-nats=false` alike, so start scripts may hold any of them: `GoStyleCommand` rewrites
them before click parses. With that, a file `liftbridge` holding `exec bascule server "$@"` stands in for
the Go binary.
"""

import asyncio
import logging
import os
import platform
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from bascule import __version__
from bascule.cli.logs import set_up
from bascule.node.config import Address, Config, load
from bascule.node.config.settings import BY_KEY, SETTINGS, Kind, Setting
from bascule.node.config.values import mask_url
from bascule.wire.kernels import TWIN

if TYPE_CHECKING:
    from bascule.node.process.server import RunningInfo

logger = logging.getLogger(__name__)

_GO_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9-]*)(?:=(.*))?", re.DOTALL)

EPILOG = """\b
Examples:
  bascule server --embedded-nats --raft-bootstrap-seed
  bascule server --config broker.yml --nats-servers nats://n1:4222,nats://n2:4222
  LIFTBRIDGE_LOGGING_LEVEL=debug bascule server --config broker.yml

Flags win over LIFTBRIDGE_* environment variables, these over the file. Every setting has a variable: its key
in capitals with _ for periods. docs/configuration.md lists them all.
"""


class GoStyleCommand(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._rewrite(ctx, args))

    def _rewrite(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args in (["help"], ["h"]):
            return ["--help"]
        options = {name.lstrip("-"): option for option in self.get_params(ctx) for name in option.opts}
        rewritten: list[str] = []
        rest = iter(args)
        for arg in rest:
            found = _GO_FLAG.fullmatch(arg)
            option = options.get(found[1]) if found else None
            if found is None or not isinstance(option, click.Option):
                rewritten.append(arg)
            elif option.is_flag:
                rewritten.append(_switch(option, found[2]))
            else:
                value = next(rest, None) if found[2] is None else found[2]
                rewritten += [_long(option.opts)] if value is None else [_long(option.opts), value]
        return rewritten


def _long(names: list[str]) -> str:
    return max(names, key=len)


def _switch(option: click.Option, value: str | None) -> str:
    if value is None or value.lower() in ("true", "t", "1"):
        return _long(option.opts)
    if value.lower() in ("false", "f", "0") and option.secondary_opts:
        return _long(option.secondary_opts)
    return f"{_long(option.opts)}={value}"  # click explains what is wrong with it


def _param(setting: Setting) -> str:
    return setting.key.replace(".", "_")


def _option(setting: Setting) -> click.Option:
    """The flag of a setting. Its text is checked by the configuration, as in a file."""
    names = [_param(setting), *sorted(setting.flags, key=len)]
    text = setting.help.replace("`", "")
    if setting.kind is Kind.BOOL:
        long = names.pop()
        return click.Option([*names, f"{long}/--no-{long[2:]}"], default=None, help=text)
    if setting.default:
        text += f"  [default: {setting.default}]"
    if setting.kind in (Kind.SERVERS, Kind.TOKENS):
        text += "  [repeatable, or comma-separated]"
        return click.Option(names, multiple=True, metavar="LIST", help=text)
    if setting.kind is Kind.CHOICE:
        return click.Option(names, metavar="|".join(setting.choices), help=text, shell_complete=_complete(setting))
    kind = click.Path() if setting.kind is Kind.PATH else None
    return click.Option(names, type=kind, metavar=setting.kind.name, help=text)


def _complete(setting: Setting) -> Callable[..., list[CompletionItem]]:
    def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(choice) for choice in setting.choices if choice.startswith(incomplete)]

    return complete


@click.command(
    cls=GoStyleCommand,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-c", "--config", type=click.Path(), metavar="FILE", help="Read settings from this YAML file.")
@click.version_option(__version__, "-v", "--version", prog_name="bascule", message="%(prog)s %(version)s")
def server(config: str | None, **flags: str | bool | tuple[str, ...] | None) -> None:
    """Run a broker until SIGTERM or SIGINT, with the settings of the Liftbridge server."""
    loaded = load(config, os.environ, _overrides(flags))
    set_up(loaded.logging)
    loaded.check_files()
    announce(loaded)
    from bascule.node.process.server import run

    sys.exit(asyncio.run(run(loaded, ready=_ready)))


server.params += [_option(setting) for setting in SETTINGS if setting.flags]


def _overrides(flags: dict[str, str | bool | tuple[str, ...] | None]) -> dict[str, object]:
    keys = {_param(setting): setting.key for setting in SETTINGS}
    overrides: dict[str, object] = {keys[name]: value for name, value in flags.items() if value not in (None, ())}
    if "nats.embedded.config" in overrides:  # this flag implies nats.embedded, whatever the file says
        overrides.setdefault(BY_KEY["nats.embedded"].key, True)
    return overrides


def announce(config: Config) -> None:
    """Log the versions, and every warning about the settings."""
    logger.info(
        "bascule %s starting: kernels %s, Python %s, namespace %s",
        __version__,
        TWIN,
        platform.python_version(),
        config.clustering.namespace,
    )
    if TWIN == "pure":
        logger.warning("the kernels are in plain Python, many times slower: reinstall where a C compiler is present")
    for warning in config.warnings:
        logger.warning("%s", warning)
    if logger.isEnabledFor(logging.DEBUG):
        for key, value in config.describe().items():
            logger.debug("setting %s = %s", key, value)


def _ready(info: "RunningInfo") -> None:
    logger.info("ready: clients connect to %s, NATS is at %s", Address(info.host, info.port), mask_url(info.nats_url))
