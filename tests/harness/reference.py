"""The reference of the client, from its docstrings: what docs/client.md shows."""

import inspect
from collections.abc import Iterator
from enum import Enum

from bascule.client import (
    Admin,
    ArrowRead,
    BulkRead,
    BulkWrite,
    Client,
    Consumer,
    GroupConsumer,
    Message,
    Producer,
    Receipt,
    Subscription,
)

CLASSES: tuple[type, ...] = (
    Client,
    Producer,
    Receipt,
    Consumer,
    GroupConsumer,
    Subscription,
    ArrowRead,
    BulkRead,
    BulkWrite,
    Message,
    Admin,
)


def reference() -> str:
    """As Markdown."""
    return "\n".join(line for each in CLASSES for line in _of(each))


def _of(kind: type) -> Iterator[str]:
    yield f"### {kind.__name__}\n"
    if kind.__doc__ and not issubclass(kind, tuple):
        yield f"{_joined(kind.__doc__)}\n"
    for name in sorted(_public(kind)):
        member = inspect.getattr_static(kind, name)
        what = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        text = _joined(inspect.getdoc(what) or "")
        yield f"- `{name}{'' if isinstance(member, property) else _arguments(what)}`{': ' if text else ''}{text}"
    yield ""


def _public(kind: type) -> set[str]:
    """Its own and what it inherits from the client's classes, not from tuple or object."""
    found: set[str] = set()
    for owner in kind.__mro__:
        if owner.__module__.startswith("bascule."):
            found.update(
                name
                for name, member in vars(owner).items()
                if not name.startswith("_")
                and (inspect.isfunction(member) or isinstance(member, property | classmethod))
            )
    return found


def _arguments(method: object) -> str:
    """Names and defaults; types are in the source."""
    shown, starred = [], False
    for each in inspect.signature(method).parameters.values():  # type: ignore[arg-type]
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        text = f"**{each.name}" if each.kind is each.VAR_KEYWORD else each.name
        has_default = each.default is not each.empty
        if has_default:
            text += f"={_default(each.default)}"
        shown.append(text)
    return f"({', '.join(shown)})"


def _default(value: object) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return "..." if callable(value) else str(value) if not isinstance(value, str) else f'"{value}"'


def _joined(text: str) -> str:
    return " ".join(text.split())
