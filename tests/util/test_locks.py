"""Readers-writer locks and deferred interrupts."""

import signal
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from waiting import is_free

from polyaforest.util.locks import ReadersWriterLock, uninterrupted

LONG = 10.0  # seconds after which something is stuck
SHORT = 0.05  # seconds in which something that can happen would have happened


@contextmanager
def running(*targets):
    """Join threads at the end, and raise their exceptions here."""
    problems = []

    def run(target):
        try:
            target()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(target,), daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join(LONG)
        assert not thread.is_alive(), "stuck"
    assert not problems, problems


def holder(enter, inside, leave):
    """Return a target that enters the block, signals this, and stays until it may leave."""

    def hold():
        with enter():
            inside.set()
            assert leave.wait(LONG)

    return hold


@contextmanager
def held(enter):
    """Let another thread hold the lock; yield the event that releases it, at the latest at the end."""
    inside, leave = threading.Event(), threading.Event()
    with running(holder(enter, inside, leave)):
        assert inside.wait(LONG)
        try:
            yield leave
        finally:
            leave.set()


# ---- readers and writers --------------------------------------------------------------------------------------------


def test_readers_share_the_lock():
    lock, meeting = ReadersWriterLock(), threading.Barrier(4)

    def read():
        with lock.reading():
            meeting.wait(LONG)  # all four are inside

    with running(read, read, read, read):
        pass
    assert is_free(lock)


@pytest.mark.parametrize("inside", ["reading", "writing"])
@pytest.mark.parametrize("outside", ["reading", "writing"])
def test_writer_excludes_others(inside, outside):
    lock, entered, leave = ReadersWriterLock(), threading.Event(), threading.Event()
    leave.set()
    with (
        held(getattr(lock, inside)) as let_go,
        running(holder(getattr(lock, outside), entered, leave)),
    ):
        both_read = inside == outside == "reading"
        assert entered.wait(LONG if both_read else SHORT) == both_read
        let_go.set()
        assert entered.wait(LONG)
    assert is_free(lock)


def test_writers_and_readers_never_overlap():
    lock, inside, problems = ReadersWriterLock(), [], []

    def visit(enter, is_writer):
        for _ in range(100):
            with enter():
                inside.append(is_writer)
                time.sleep(0)
                if any(inside) and len(inside) > 1:
                    problems.append(list(inside))
                inside.remove(is_writer)

    with running(*[lambda: visit(lock.writing, True)] * 2, *[lambda: visit(lock.reading, False)] * 3):
        pass
    assert not problems
    assert is_free(lock)


def test_waiting_writer_precedes_later_readers():
    lock, order = ReadersWriterLock(), []
    written, read, leave = threading.Event(), threading.Event(), threading.Event()
    leave.set()

    def write():
        with lock.writing():
            order.append("write")
            written.set()

    def read_later():
        with lock.reading():
            order.append("read")
            read.set()

    with held(lock.reading) as let_go, running(write):
        assert not written.wait(SHORT)
        with running(read_later):
            assert not read.wait(SHORT)  # though only readers are inside
            let_go.set()
    assert order == ["write", "read"]
    assert is_free(lock)


def test_writers_are_not_starved_by_readers():
    lock, stop = ReadersWriterLock(), threading.Event()

    def read():
        while not stop.is_set():
            with lock.reading():
                time.sleep(0.001)

    with running(read, read, read):
        for _ in range(20):
            with lock.writing():
                pass
        stop.set()


def test_waiting_reader_precedes_later_writer():
    """A stream that learns in a tight loop must not block scoring."""
    lock, stop, n_written, passed = ReadersWriterLock(), threading.Event(), [0], []

    def write():
        while not stop.is_set():
            with lock.writing():
                n_written[0] += 1
                time.sleep(0.001)

    def keep_reading():
        for _ in range(21):
            before = n_written[0]
            with lock.reading():
                passed.append(n_written[0] - before)

    with running(write):
        try:
            with running(keep_reading):
                pass
        finally:
            stop.set()
    assert len(passed) == 21
    assert sorted(passed)[10] <= 2  # writers before a reader, except when the machine suspends it before it waits


@pytest.mark.parametrize("how", ["reading", "writing"])
@pytest.mark.parametrize("problem", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_lock_is_released_after_exception(how, problem):
    lock = ReadersWriterLock()
    for _ in range(3):
        with pytest.raises(problem), getattr(lock, how)():
            raise problem
        assert is_free(lock)


@pytest.mark.parametrize("how", ["reading", "writing"])
def test_lock_is_released_after_interrupted_wait(how):
    lock = ReadersWriterLock()
    with held(lock.writing if how == "reading" else lock.reading) as let_go:
        with pytest.raises(KeyboardInterrupt):
            give_up_waiting(getattr(lock, how))
        let_go.set()
    assert is_free(lock)


def give_up_waiting(enter):
    """Wait for a held lock, and be interrupted before it is free."""

    def press():
        time.sleep(SHORT)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        pytest.skip("only the main thread is interrupted")
    presser = threading.Thread(target=press)
    presser.start()
    try:
        with enter():
            raise AssertionError("the lock was taken")
    finally:
        presser.join()


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _handler_put_back():
    before = signal.getsignal(signal.SIGINT)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, before)


def press_ctrl_c(and_then=lambda: None):
    signal.raise_signal(signal.SIGINT)
    and_then()


def test_interrupt_is_deferred_to_end_of_block():
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        press_ctrl_c(lambda: done.append("all"))
    assert done == ["all"]
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c()


def test_block_without_interrupt_does_nothing():
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_custom_handler_is_called_once_and_restored():
    calls = []

    def handle(number, frame):
        calls.append((number, frame))

    signal.signal(signal.SIGINT, handle)
    with uninterrupted():
        press_ctrl_c()
        press_ctrl_c()
        assert calls == []
    assert [number for number, _ in calls] == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is handle
    press_ctrl_c()
    assert len(calls) == 2


def test_blocks_can_be_nested():
    done = []

    def work():
        with uninterrupted():
            press_ctrl_c()
            done.append("inner")
        done.append("outer")

    with pytest.raises(KeyboardInterrupt), uninterrupted():
        work()
    assert done == ["inner", "outer"]


def test_exception_propagates_and_handler_is_restored():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), uninterrupted():
        _ = 1 / 0
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupt_survives_exception_in_block():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as interrupt, uninterrupted():
        press_ctrl_c(lambda: 1 / 0)
    assert isinstance(interrupt.value.__context__, ZeroDivisionError)
    assert signal.getsignal(signal.SIGINT) is before


def test_ignored_interrupt_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        press_ctrl_c()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    press_ctrl_c()


def test_default_interrupt_still_kills():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with uninterrupted():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_other_threads_need_no_deferral():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))
        with suppress(ZeroDivisionError), uninterrupted():
            seen.append(1 / 0)

    with running(work):
        pass
    assert seen == [before]


def test_block_in_another_thread_does_not_defer_main_thread():
    with held(uninterrupted) as let_go:
        with pytest.raises(KeyboardInterrupt):
            press_ctrl_c()
        let_go.set()
