"""The main module of a translated program, in a process that multiprocessing spawned (see :mod:`.programs`)."""

import os

from . import session
from .programs import SCRIPT, SCRIPT_PACKAGE

if __name__ == "__mp_main__":
    _session = session.enable_as_asked()
    __file__ = os.environ[SCRIPT]
    globals()["__package__"] = os.environ[SCRIPT_PACKAGE] or None
    _session.translator.mark(globals())
    with open(__file__, "rb") as _file:
        exec(_session.translator.compile(_file.read(), __file__), globals())
