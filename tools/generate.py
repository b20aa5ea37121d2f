"""Generates `*_pb2.py` and `*_pb2.pyi` from the .proto files beside them.

The generated modules register in a descriptor pool of their own: a program that also imports another
Liftbridge client (they all define package `proto`) would otherwise fail with a duplicate symbol.
"""

import re
import subprocess
import sys
from pathlib import Path

PB = Path(__file__).parent.parent / "src" / "bascule" / "wire" / "pb"
POOL = "from bascule.wire.pb.pool import POOL as _bascule_pool"


def main() -> None:
    protos = sorted(path.name for path in PB.glob("*.proto"))
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", f"-I{PB}", f"--python_out={PB}", f"--pyi_out={PB}", *protos],
        check=True,
    )
    for name in protos:
        module = PB / name.replace(".proto", "_pb2.py")
        text = module.read_text()
        text, replaced = re.subn(r"_descriptor_pool\.Default\(\)", "_bascule_pool", text)
        assert replaced == 1, f"{module}: expected one use of the default pool, found {replaced}"
        text = text.replace("from google.protobuf import descriptor_pool as _descriptor_pool", POOL)
        module.write_text(text)
    print(f"generated {len(protos)} modules in {PB.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
