"""A YAML file as a flat list of settings.

Nested and dotted keys say the same (`logging: {level: debug}` and `logging.level: debug`) and may be mixed;
a setting given twice is an error, because nobody can see which one wins. Keys ignore case, as in the Go
server. The document is only composed, never constructed: values stay the text that was written, each with
its line, and no tag can do harm. Aliases cannot blow it up: nodes are counted as often as they are used.
"""

from collections.abc import Iterator

import yaml

from bascule.errors import ConfigError
from bascule.limits import CONFIG_MAX_BYTES, CONFIG_MAX_DEPTH, CONFIG_MAX_NODES
from bascule.node.config.settings import BY_KEY, nearest
from bascule.node.config.values import Raw, quoted

_SCALARS = tuple(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "timestamp", "value"))
_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"


def read_file(path: str) -> tuple[dict[str, Raw], list[str]]:
    """The settings of the file by key, and warnings."""
    root = _compose(path, _read(path))
    if root is None or root.tag == _NULL:
        return {}, [f"{path} holds no settings, so defaults apply: add settings or start without --config"]
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path} is not a list of settings: write lines such as `port: 9292`")
    settings: dict[str, Raw] = {}
    lines: dict[str, int] = {}
    for key, node in _Walk(path).settings(root):
        line = node.start_mark.line + 1
        if key in lines:
            where = f"lines {lines[key]} and {line}" if line != lines[key] else f"twice in line {line}"
            raise ConfigError(f'Duplicate configuration setting "{key}" ({path}, {where}): keep one of them')
        lines[key] = line
        value = _value(path, key, node)
        if value is not None:
            settings[key] = Raw(value, f"{path}, line {line}")
    return settings, []


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(CONFIG_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {path}: check the path given with --config") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a directory: give --config the path of a YAML file") from None
    except OSError as error:
        raise ConfigError(
            f"Cannot read the configuration file {path}: {error.strerror}; check the path and its permissions"
        ) from None
    except ValueError as error:  # a zero byte in the path
        raise ConfigError(f"Cannot read the configuration file {path!r}: {error}; check the path") from None
    if len(data) > CONFIG_MAX_BYTES:
        raise ConfigError(f"{path} is larger than {CONFIG_MAX_BYTES} bytes: this is not a configuration file")
    if not data.strip(b" \t\r\n\0\xef\xbb\xbf"):
        raise ConfigError(f"{path} is empty: write settings into it, or start without --config to use defaults")
    return data


def _compose(path: str, data: bytes) -> yaml.Node | None:
    try:
        root: yaml.Node | None = yaml.compose(data, Loader=yaml.SafeLoader)
        return root
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{path} is not valid YAML{where}: {problem}; fix that line") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(
            f"{path} is not text in UTF-8 (byte {error.position}: {error.reason}): save it as UTF-8"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except (RecursionError, ValueError):
        raise ConfigError(f"{path} is nested too deeply: settings have few levels, or dotted names") from None


class _Walk:
    """Counts the nodes it meets, so that aliases of aliases end in an error and not in the memory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.nodes = 0

    def settings(self, mapping: yaml.MappingNode, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, yaml.Node]]:
        for key_node, value in mapping.value:
            self.nodes += 1
            where = f"{self.path}, line {key_node.start_mark.line + 1}"
            if self.nodes > CONFIG_MAX_NODES or depth > CONFIG_MAX_DEPTH:
                raise ConfigError(f"Too many settings or too deep a nesting ({where}): look for an alias in a loop")
            if key_node.tag == _MERGE:
                raise ConfigError(f"Merge keys (<<) are not supported ({where}): write the settings out")
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"A setting's name must be plain text ({where})")
            key = f"{prefix}{key_node.value.strip().lower()}"
            if isinstance(value, yaml.MappingNode):
                yield from self.settings(value, key + ".", depth + 1)
            elif key in BY_KEY:
                yield key, value
            elif value.tag != _NULL or not _is_section(key):
                raise ConfigError(_unknown(key, where))


def _is_section(key: str) -> bool:
    return any(name.startswith(key + ".") for name in BY_KEY)


def _unknown(key: str, where: str) -> str:
    text = f"Unknown configuration setting {quoted(key)} ({where})"
    if _is_section(key):
        inside = ", ".join([name for name in BY_KEY if name.startswith(key + ".")][:3])
        return f"{text}: it is a section, with settings such as {inside}"
    meant = nearest(key)
    return f'{text}: did you mean "{meant}"?' if meant else f"{text}: docs/configuration.md lists all settings"


def _value(path: str, key: str, node: yaml.Node) -> str | tuple[str, ...] | None:
    """The text, or None for nothing: `host:` with no value is an unset host."""
    if node.tag == _NULL:
        return None
    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    texts: list[str] = []
    for item in nodes:
        if not isinstance(item, yaml.ScalarNode) or item.tag not in _SCALARS:
            line = item.start_mark.line + 1
            raise ConfigError(f"Invalid {key} setting ({path}, line {line}): expected text, a number or a list of them")
        texts.append(item.value)
        if len(texts) > CONFIG_MAX_NODES:
            raise ConfigError(f"Invalid {key} setting ({path}): a list of more than {CONFIG_MAX_NODES}")
    return tuple(texts) if isinstance(node, yaml.SequenceNode) else texts[0]
