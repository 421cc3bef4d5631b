"""Tests do not depend on what a test run inherits: signals that are ignored, and settings in the environment."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.end_to_end

TESTS = Path(__file__).parents[1]
IGNORED = ["SIGHUP", "SIGINT", "SIGTERM"]
# A process that ignores signals, as `nohup` has it, prepares itself as the tests do, and starts another one.
SCRIPT = f"""
import signal, subprocess, sys
for name in {IGNORED}:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
sys.path.insert(0, {str(TESTS)!r})
import surroundings
surroundings.reset_signals()
surroundings.reset_environment()
signal.raise_signal(signal.SIGHUP)  # which this process still survives
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted", flush=True)
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
"""
REPORT = f"""
import os, signal
print(*(signal.getsignal(getattr(signal, name)).name for name in {IGNORED} if name != "SIGINT"))
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(*(name for name in ("NO_COLOR", "COLUMNS", "PYTHONIOENCODING", "POLYAFOREST_TRACEBACK") if name in os.environ))
"""


def test_processes_have_default_signals_and_no_settings_of_the_user():
    settings = {"NO_COLOR": "1", "COLUMNS": "20", "PYTHONIOENCODING": "latin-1", "POLYAFOREST_TRACEBACK": "1"}
    command = [sys.executable, "-c", SCRIPT, REPORT]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["interrupted", "SIG_DFL SIG_DFL", "True set()", ""]


def test_this_process_ignores_nothing_that_a_test_may_send():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert all(signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN for name in IGNORED)
