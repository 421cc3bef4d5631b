"""Kafka topics."""

from __future__ import annotations

import logging
import re
import time
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from polyaforest.io.errors import BadInput
from polyaforest.io.records import Record
from polyaforest.io.sources._lines import Position, import_extra
from polyaforest.util import schema

__all__ = ["KafkaTopic"]

_SLICE = 0.2  # seconds per blocking call of the library, during which Ctrl-C is not handled
_ANSWER = 1.0  # seconds to wait for metadata
_LOOK, _LOOK_AGAIN = 10.0, 0.5  # seconds between updates of the partitions; after a failure
_MOST_HELD = 16_384  # kilobytes of read-ahead

_BROKER = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/@\[\]]+)(?::\d{1,5})?", re.ASCII)

_log = logging.getLogger("polyaforest.kafka")
_log.addHandler(logging.NullHandler())  # important messages become notices


class KafkaTopic:
    """Messages of all partitions of a Kafka topic, from the earliest available.

    Joins no consumer group and commits nothing: the caller keeps the position, the next offset by partition. Discovers
    new partitions while running, and waits for unavailable brokers.

    Parameters
    ----------
    where : str
        ``kafka://host:port,host:port/topic``, optionally with librdkafka settings:
        ``?security.protocol=SASL_SSL&sasl.username=…``.
    """

    can_replay = True

    def __init__(self, where: str) -> None:
        self.notices: list[str] = []
        self._kafka = import_extra("kafka", "confluent_kafka")
        self._brokers, self._topic, settings = _parts(where)
        self._next: dict[int, int] = {}  # the next message, by partition
        self._assigned: set[int] = set()
        self._next_look = 0.0
        self._trouble = ""
        self._refusal = ""
        ours = {"error_cb": self._hear, "logger": _log}
        try:
            self._consumer: Any = self._kafka.Consumer(settings | ours)
        except (TypeError, ValueError, self._kafka.KafkaException) as problem:
            raise BadInput(f"invalid Kafka address: {_words(problem)}") from problem

    # Reading

    def read(self, most: int, wait: float) -> list[Record] | None:
        """Return at most `most` messages: [] if none arrived within `wait` seconds, None once closed."""
        deadline = time.monotonic() + wait
        while self._consumer is not None:
            if time.monotonic() >= self._next_look:
                self._look()
            records = self._messages(most, min(max(deadline - time.monotonic(), 0.0), _SLICE))
            if self._refusal:
                raise BadInput(f"topic '{self._topic}' at {self._brokers} cannot be read: {self._refusal}")
            if records or time.monotonic() >= deadline:
                return records
        return None

    def _messages(self, most: int, wait: float) -> list[Record]:
        """Return available messages, or else messages that arrive within `wait` seconds."""
        messages = self._consumer.consume(most, 0.0)
        if not messages and wait:
            messages = self._consumer.consume(1, wait)
            if messages and most > 1:
                messages += self._consumer.consume(most - 1, 0.0)
        records = []
        for message in [message for message in messages if not message.error()]:
            partition, offset = message.partition(), message.offset()
            self._next[partition] = offset + 1
            records.append(Record(f"{partition}:{offset}", message.value() or b""))
        for fault in [message for message in messages if message.error()]:
            self._mend(fault)
        if records:
            self._end_trouble()
        return records

    # Partitions

    def _look(self) -> None:
        """Update the partitions, and assign new ones."""
        self._next_look = time.monotonic() + _LOOK_AGAIN
        try:
            topic = self._consumer.list_topics(self._topic, _ANSWER).topics[self._topic]
        except self._kafka.KafkaException as problem:
            self._hear(problem.args[0])
            return
        if topic.error is not None or not topic.partitions:
            self._hear(topic.error)
            return
        self._next_look = time.monotonic() + _LOOK
        self._end_trouble()
        if set(topic.partitions) != self._assigned:
            self._assigned = set(topic.partitions)
            self._assign()

    def _assign(self) -> None:
        """Assign all partitions, each from its next message or else from its beginning."""
        beginning = self._kafka.OFFSET_BEGINNING
        places = {partition: self._next.get(partition, beginning) for partition in sorted(self._assigned)}
        self._consumer.assign([self._kafka.TopicPartition(self._topic, *place) for place in places.items()])

    def _mend(self, fault: Any) -> None:
        """Handle an error returned in place of a message."""
        if fault.error().code() == self._kafka.KafkaError._AUTO_OFFSET_RESET and fault.partition() in self._assigned:
            self._leap(fault.partition())
        else:
            self._hear(fault.error())
            self._next_look = min(self._next_look, time.monotonic() + _LOOK_AGAIN)

    def _leap(self, partition: int) -> None:
        """Continue with the first available message of a partition whose next one is missing."""
        place = self._kafka.TopicPartition(self._topic, partition)
        try:
            first, end = self._consumer.get_watermark_offsets(place, _ANSWER)
        except self._kafka.KafkaException as problem:
            self._hear(problem.args[0])
            self._assign()  # to receive the error again
            return
        expected = self._next.get(partition, first)
        if expected < first:
            lost = f"{first - expected} messages were removed before they were read"
        else:
            lost = f"reset, ends at {end}, expected offset {expected}; reading from the beginning"
        self.notices.append(f"topic '{self._topic}', partition {partition}: {lost}")
        self._next[partition] = first
        self._assign()

    # Trouble

    def _hear(self, error: Any) -> None:
        """Handle an error of the library, permanent or transient."""
        kinds = self._kafka.KafkaError
        code = kinds.NO_ERROR if error is None else error.code()
        permanent = (kinds._AUTHENTICATION, kinds.TOPIC_AUTHORIZATION_FAILED, kinds.SASL_AUTHENTICATION_FAILED,
                    kinds.TOPIC_EXCEPTION)  # fmt: skip
        no_topic = (kinds.NO_ERROR, kinds.UNKNOWN_TOPIC_OR_PART, kinds._UNKNOWN_TOPIC, kinds._UNKNOWN_PARTITION)
        if code in permanent or (error is not None and error.fatal()):
            self._refusal = error.str()
        elif code in no_topic:
            self._begin_trouble(f"waiting for topic '{self._topic}' to appear")
        elif code in (kinds._ALL_BROKERS_DOWN, kinds._TIMED_OUT, kinds._TRANSPORT, kinds._RESOLVE) and (
            code != kinds._TRANSPORT or not self._assigned  # a single lost connection is not reported
        ):
            self._begin_trouble(f"the Kafka brokers at {self._brokers} are unavailable: waiting")

    def _begin_trouble(self, words: str) -> None:
        """Report an obstacle, once."""
        if words != self._trouble:
            self.notices.append(words)
        self._trouble = words

    def _end_trouble(self) -> None:
        """Report that messages can be read again."""
        if self._trouble:
            self.notices.append(f"topic '{self._topic}' is available")
        self._trouble = ""

    # Positions

    @property
    def position(self) -> Position:
        """Next offset by partition."""
        return {str(partition): offset for partition, offset in sorted(self._next.items())}

    def seek(self, position: Position) -> None:
        """Continue after a `position`."""
        for partition, offset in position.items():
            schema.whole()(offset, f"partition {partition}")
        self._next = {int(partition): offset for partition, offset in position.items()}
        if self._assigned:
            self._assign()

    def close(self) -> None:
        """Close the connections; idempotent."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None


def _parts(where: str) -> tuple[str, str, dict[str, Any]]:
    """Return the brokers, the topic and the settings of an address."""
    address = urlsplit(where)
    brokers, topic = address.netloc, unquote(address.path.strip("/"))
    if not brokers or not topic or "/" in topic:
        raise BadInput("the Kafka address must be kafka://host:port/topic, with commas between several hosts")
    for broker in brokers.split(","):
        if not _BROKER.fullmatch(broker):
            raise BadInput(f"invalid broker {broker!r} in the Kafka address: use host:port")
    asked = dict(parse_qsl(address.query))
    defaults = {"group.id": "polyaforest", "queued.max.messages.kbytes": _MOST_HELD}
    needed = {"bootstrap.servers": brokers, "enable.auto.commit": False, "auto.offset.reset": "error"}
    return brokers, topic, defaults | asked | needed


def _words(problem: Exception) -> str:
    """Return the message of an error of the library."""
    error = problem.args[0] if problem.args else problem
    return str(error.str() if hasattr(error, "str") else error)
