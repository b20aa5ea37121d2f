"""Builds the compiled kernels. They are optional: without a compiler the pure-Python twin serves, and says so.

BASCULE_REQUIRE_KERNELS=1 makes a failed build an error (release builds).
BASCULE_SANITIZE=1 builds them with the address and undefined-behaviour sanitizers (for `make fuzz`).
"""

import os
from glob import glob

from setuptools import Extension, setup

REQUIRED = os.environ.get("BASCULE_REQUIRE_KERNELS") == "1"
SANITIZE = os.environ.get("BASCULE_SANITIZE") == "1"
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g"]


def kernels() -> list[Extension]:
    extension = Extension(
        "bascule.wire._kernels",
        ["src/bascule/wire/_kernels.pyx"],
        depends=sorted(glob("src/bascule/wire/*.pxi")),
        extra_compile_args=["-O3" if not SANITIZE else "-O1", *(SANITIZERS if SANITIZE else [])],
        extra_link_args=SANITIZERS if SANITIZE else [],
    )
    try:
        from Cython.Build import cythonize
    except ImportError:
        if REQUIRED:
            raise
        return []
    modules: list[Extension] = cythonize([extension], language_level=3)  # type: ignore[no-untyped-call]
    for module in modules:
        # cythonize() copies the extension and drops the flag, so it is set afterwards.
        module.optional = not REQUIRED
    return modules


setup(ext_modules=kernels())
