"""Locks are free in a forked child, and raise if the state they guard is inconsistent."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.end_to_end, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

SHARED = """
import faulthandler
faulthandler.dump_traceback_later(60, exit=True)
import os, signal, threading
from polyaforest.util.locks import ReadersWriterLock

lock = ReadersWriterLock()


def visit(how, **options):
    "What a thread finds that comes to the lock."
    try:
        with getattr(lock, how)(**options):
            return "free"
    except RuntimeError as problem:
        message = str(problem)
        return "torn" if "forked while" in message else "inside" if "this thread already" in message else message


def in_child(*visits):
    pid = os.fork()
    if not pid:
        signal.alarm(30)  # a fork has no watchdog thread
        print(*(visit(how, **options) for how, options in visits), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


READ, WRITE, TURN, REPLACE = ("reading", {}), ("writing", {}), ("turn", {}), ("writing", {"replace_all": True})


def held_by_others(*hows):
    inside, leave = threading.Barrier(len(hows) + 1), threading.Event()

    def hold(how):
        with getattr(lock, how)():
            inside.wait(30)
            leave.wait(30)

    threads = [threading.Thread(target=hold, args=(how,)) for how in hows]
    for thread in threads:
        thread.start()
    inside.wait(30)
    return leave, threads
"""


def run(script):
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", SHARED + script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.split("\n")[:-1]


def held(*hows):
    return f"leave, threads = held_by_others(*{hows})\n"


LET_GO = """
leave.set()
for thread in threads:
    thread.join()
print(visit("reading"), visit("writing"), visit("turn"))
"""


def test_read_lock_is_free_in_child():
    assert run(held("reading", "reading") + "in_child(WRITE, READ, TURN)" + LET_GO) == ["free free free"] * 2


def test_write_lock_is_torn_in_child_until_state_is_replaced():
    said = run(held("writing") + "in_child(READ, WRITE, TURN, REPLACE, READ, WRITE)" + LET_GO)
    assert said == ["torn torn free free free free", "free free free"]


def test_turn_is_free_in_child():
    assert run(held("turn") + "in_child(TURN, READ, WRITE)" + LET_GO) == ["free free free"] * 2


def test_torn_lock_stays_torn_in_grandchild():
    script = """
pid = os.fork()
if not pid:
    in_child(READ, WRITE)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""
    assert run(held("writing") + script + LET_GO) == ["torn torn", "free free free"]


def test_fork_inside_lock_continues_in_both_processes():
    script = """
for how in ("reading", "writing"):
    with getattr(lock, how)():
        pid = os.fork()
        if not pid:
            signal.alarm(30)
            print(visit("reading"), end=" ")
    if not pid:
        print(visit("reading"), visit("writing"), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    print(visit("reading"), visit("writing"), flush=True)
"""
    assert run(script) == ["free free free", "free free", "torn torn torn", "free free"]


@pytest.mark.parametrize(
    ("outside", "inside", "found"),
    [
        ("reading", "reading", "free"),
        ("reading", "writing", "inside"),
        ("writing", "reading", "inside"),
        ("writing", "writing", "inside"),
    ],
)
def test_signal_handler_does_not_deadlock_with_its_own_thread(outside, inside, found):
    script = f"""
signal.signal(signal.SIGTERM, lambda *_: print(visit({inside!r}), flush=True))
waiting = None
with lock.{outside}():
    if {outside == "reading"}:  # a writer waits, and those who come to read later wait for it
        waiting = threading.Thread(target=lambda: visit("writing"))
        waiting.start()
        while not lock._n_to_write:
            pass
    signal.raise_signal(signal.SIGTERM)
if waiting:
    waiting.join()
print(visit("reading"), visit("writing"))
"""
    assert run(script) == [found, "free free"]
