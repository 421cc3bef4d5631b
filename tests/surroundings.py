"""Reset settings that a test run inherits from its parent process.

Examples: `nohup` ignores SIGHUP, a shell script ignores SIGINT in its background jobs, a user may have set NO_COLOR.
"""

import os
import signal

_IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
# Variables that change what programs write, or how Python runs.
_UNSET = {
    "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "LINES", "MPLBACKEND", "NO_COLOR", "PYTHONIOENCODING",
    "PYTHONOPTIMIZE", "PYTHONUTF8", "PYTHONWARNINGS", "PY_COLORS",
}  # fmt: skip
_KEPT = {"POLYAFOREST_CACHE_DIR", "POLYAFOREST_DATA"}  # where files are, which changes no result
_SET = {"LC_ALL": "C.UTF-8", "TERM": "xterm", "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}


def reset_environment():
    """Remove the user's settings of programs from the environment."""
    for name in list(os.environ):
        if name in _UNSET or (name.startswith("POLYAFOREST_") and name not in _KEPT):
            del os.environ[name]
    os.environ.update(_SET)


def reset_signals():
    """Give processes that tests start the default signal handlers, and let Ctrl-C raise KeyboardInterrupt here.

    A program inherits ignored signals, but not handlers. A handler that does nothing keeps this process ignoring what
    it was started to ignore, so that a test run under `nohup` survives its terminal.
    """
    for number in signal.valid_signals() - _IGNORED_BY_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _do_nothing)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _do_nothing(number, frame):
    pass
