"""Settings from environment variables: LIFTBRIDGE_ and the key in capitals with _ for every period.

The Go server documents that form and honours only the one with periods (LIFTBRIDGE_LOGGING.LEVEL); both
work here, with or without a configuration file. A variable that is no setting is a warning, not an error:
it may belong to something else. Kubernetes, for one, describes a service named liftbridge in variables of
the same prefix. No value is ever put into a warning.
"""

import os
import re
from collections.abc import Mapping

from bascule.node.config.settings import ENV_PREFIX, SETTINGS, nearest
from bascule.node.config.values import Raw

ENCRYPTION_KEY = "LIFTBRIDGE_ENCRYPTION_KEY"
_BY_ENV = {setting.env: setting for setting in SETTINGS}
_KUBERNETES = re.compile(r"LIFTBRIDGE_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")


def read_environment(environ: Mapping[str, str]) -> tuple[dict[str, Raw], list[str]]:
    """The settings by key, and warnings."""
    settings: dict[str, Raw] = {}
    warnings: list[str] = []
    # In this order a name with periods comes before its twin with underscores, which then wins.
    for name in sorted(environ):
        value = environ[name]
        if not name.startswith(ENV_PREFIX) or name == ENCRYPTION_KEY or not value or _KUBERNETES.fullmatch(name):
            continue
        setting = _BY_ENV.get(name.replace(".", "_"))
        if setting is None:
            warnings.append(_unknown(name))
        elif setting.key == "port" and "://" in value:
            warnings.append(f"{name} is ignored: it holds a URL, as Kubernetes sets for a service named liftbridge")
        else:
            earlier = settings.get(setting.key)
            if earlier is not None and earlier.value != value:
                warnings.append(f"{setting.env} is set twice, with periods and with underscores: {name} is used")
            settings[setting.key] = Raw(value, f"environment variable {name}")
    return settings, warnings


def encryption_key(environ: Mapping[str, str]) -> bytes:
    """The master key's own bytes; empty if there is none."""
    return os.fsencode(environ.get(ENCRYPTION_KEY, ""))


def _unknown(name: str) -> str:
    meant = nearest(name.upper(), (*_BY_ENV, ENCRYPTION_KEY))
    hint = f": did you mean {meant}?" if meant else ": unset it, or see docs/configuration.md for all names"
    return f"The environment variable {name} is not a setting and is ignored{hint}"
