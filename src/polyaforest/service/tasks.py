"""Tasks that other threads give to the thread of a stream, which runs them between two batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from polyaforest.service.inbox import Busy
from polyaforest.service.worker import Worker

Answer = TypeVar("Answer")


class Tasks:
    """The tasks that wait for a stream, in order."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._waiting: deque[tuple[Callable[[Worker], Any], Future[Any]]] = deque()

    def add(self, task: Callable[[Worker], Answer]) -> Future[Answer]:
        """Add a task; its exceptions propagate through the future."""
        answer: Future[Answer] = Future()
        self._waiting.append((task, answer))
        return answer

    def run(self, worker: Worker) -> None:
        """Run all tasks that are not cancelled."""
        while self._waiting:
            task, answer = self._waiting.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(task(worker))
            except Exception as problem:  # it propagates to the caller
                answer.set_exception(problem)

    def reject(self) -> None:
        """Answer all tasks that the stream is not running."""
        while self._waiting:
            self._waiting.popleft()[1].set_exception(Busy(f"the stream {self._stream} is not running"))
