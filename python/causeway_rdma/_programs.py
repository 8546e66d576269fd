"""The programs that the package has, which take the place of Python."""

import os
import pathlib
import sys

_PLACE = pathlib.Path(__file__).parent / "native" / "bin"


def _become(name):
    program = _PLACE / name
    try:
        os.execv(program, [name, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"{name}: cannot execute {program}: {error.strerror}")


def causeway():
    """`causeway`"""
    _become("causeway")


def causewayd():
    """`causewayd`"""
    _become("causewayd")


def causeway_noded():
    """`causeway-noded`"""
    _become("causeway-noded")
