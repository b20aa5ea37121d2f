"""Every program of docs/client.md runs, in its order, against one broker."""

import asyncio
import contextlib
import io
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from bascule.client import Client, Message
from bascule.testing.processes import start_broker

GUIDE = Path(__file__).parent.parent.parent / "docs" / "client.md"


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_the_programs_of_the_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    handled: list[Message] = []
    names: dict[str, Any] = {"handle": handled.extend}
    with start_broker(tmp_path, config={"cursors.stream.partitions": 1}) as broker:

        async def main() -> None:
            async with Client.connect(broker.address) as client:
                names["client"] = client
                for program in programs():
                    for stream in ("copies", "transfers"):
                        if stream in program:
                            await client.create_stream(stream)
                    text = f"async def main():\n{textwrap.indent(program, '    ')}"
                    exec(compile(text.replace("localhost:9292", broker.address), "docs/client.md", "exec"), names)
                    await names["main"]()
                assert len(await read(client, "copies")) == 1001
                once = [(each.partition, int(each.headers["source-offset"])) for each in await read(client, "once")]
                assert sorted(once) == [(each.partition, each.offset) for each in await ordered(client, "orders")]

        async def read(client: Client, stream: str) -> list[Message]:
            async with client.consumer(stream, stop="latest") as consumer:
                return [message async for message in consumer]

        async def ordered(client: Client, stream: str) -> list[Message]:
            return sorted(await read(client, stream), key=lambda each: (each.partition, each.offset))

        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            asyncio.run(main())
    lines = said.getvalue().splitlines()
    assert len(lines) == 2 + 1001 + 1001 + 1 + 4 + 1
    assert lines[1].startswith("StoredBatch(stream='transfers'")
    assert lines[1003] == "1001", "an hour holds them all"
    assert len(handled) == 1001
    assert sum(json.loads((tmp_path / "position.json").read_text())["orders"].values()) == 1001
    assert (tmp_path / "orders-0.log").stat().st_size > 0
    assert len(programs()) == 12


PREAMBLE = """
from bascule.client import Client, Message


def handle(batch: list[Message]) -> None: ...
"""


def test_the_programs_of_the_guide_are_typed(tmp_path: Path) -> None:
    text = PREAMBLE
    for number, program in enumerate(programs()):
        text += f"\n\nasync def program_{number}(client: Client) -> None:\n{textwrap.indent(program, '    ')}"
    module = tmp_path / "guide.py"
    module.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(module)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
