"""Run streams of the service within this process, without HTTP."""

from __future__ import annotations

import json
from contextlib import contextmanager

from services import WEB
from waiting import until

from polyaforest.service.app import Service
from polyaforest.service.config import parse_config

service_of = {}  # by stream


@contextmanager
def running(folder, config=WEB):
    """Run a service in a folder; yield its stream `web`."""
    service = Service(parse_config(config).at(data=str(folder)))
    service.start()
    try:
        stream = service.streams["web"]
        service_of[stream] = service
        until(lambda: stream.is_ready)
        yield stream
    finally:
        service.stop()


def post(stream, records):
    """Post records; return the results."""
    return stream.inbox.put([json.dumps(record).encode() for record in records]).result(120).results
