"""Values of the options of `format("liftbridge")`: what reading and writing have in common.

A name that is unknown or a value that cannot be used is an error that names the option, and what would be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from bascule.errors import InvalidArgument

TLS_OPTIONS: dict[str, str] = {
    "tlsCa": "A file with the certificates to trust; the brokers are reached over TLS then.",
    "tlsCert": "A file with the certificate of this client.",
    "tlsKey": "The file with its key.",
}


@dataclass(frozen=True, slots=True)
class Tls:
    ca: str
    cert: str = ""
    key: str = ""


def known_options(given: Mapping[str, str], options: Iterable[str]) -> dict[str, str]:
    """By the names as they are documented: Spark does not mind their case."""
    names = {name.lower(): name for name in options}
    return {_known(name, names): value for name, value in given.items()}


def _known(name: str, names: Mapping[str, str]) -> str:
    known = names.get(name.lower())
    if known is None:
        near = get_close_matches(name.lower(), names, 1, 0.5)
        hint = f"did you mean {names[near[0]]}?" if near else f"there are {', '.join(names.values())}"
        raise InvalidArgument(f'format("liftbridge") has no option "{name}": {hint}')
    return known


def list_of(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    items = [item.strip() for item in options.get(name, "").split(",")]
    return tuple(dict.fromkeys(item for item in items if item))


def required(options: Mapping[str, str], name: str, example: str) -> tuple[str, ...]:
    items = list_of(options, name)
    if not items:
        raise InvalidArgument(f'the option "{name}" is missing: .option("{name}", "{example}")')
    return items


def count_of(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise InvalidArgument(f'the option "{name}" is a number from 1 on, not {text!r}')
    return int(text)


def number_of(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) >= 1 << 63:
        raise InvalidArgument(f'the option "{name}" is a number from 0 on, not {text!r}')
    return int(text)


def flag_of(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f'the option "{name}" is true or false, not {text!r}')
    return text == "true"


def tls_of(options: Mapping[str, str]) -> Tls | None:
    ca, cert, key = (options.get(name, "").strip() for name in ("tlsCa", "tlsCert", "tlsKey"))
    if bool(cert) != bool(key):
        raise InvalidArgument('give both options "tlsCert" and "tlsKey", or neither')
    if cert and not ca:
        raise InvalidArgument('the option "tlsCert" needs "tlsCa", the certificates to trust')
    return Tls(ca, cert, key) if ca else None
