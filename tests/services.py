"""Run the service in processes, and receive its alerts."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import numpy as np
from waiting import until

_ADDRESS = re.compile(r"at (http://[^ ]+)")
PATIENCE = 120.0  # seconds to wait for a response: a loaded machine may take long


START = 1_700_000_000.0


def rows(n, start=0, *, host="web-1", seed=0, step=60.0):
    """Return normal records of a host."""
    rng = np.random.default_rng([seed, start])
    values = rng.normal(size=(n, 3)) * (2.0, 1.0, 5.0) + (50.0, 10.0, 200.0)
    return [
        {
            "time": START + step * (start + i),
            "host": host,
            "id": f"{host}-{start + i}",
            "cpu": a,
            "load": b,
            "requests": c,
        }
        for i, (a, b, c) in enumerate(values.tolist())
    ]


def odd(number, *, host="web-1", cpu=99.0, step=60.0):
    """Return an anomalous record."""
    return {
        "time": START + step * number,
        "host": host,
        "id": f"{host}-{number}",
        "cpu": cpu,
        "load": 10,
        "requests": 200,
    }


WEB = """
[streams.web]
time = "time"
by = "host"
id = "id"
trees = 20
save_every = "1s"
"""


class Service:
    """`polyaforest serve` in a folder, on a free port; can be restarted."""

    def __init__(self, programs, folder, config, **env):
        self.programs, self.folder, self.env = programs, folder, env
        (folder / "polyaforest.toml").write_text(config)
        self.process = None
        self.client = None
        self._starts = 0

    def start(self, *options, wait=True):
        """Start a process; wait until it is ready."""
        self._starts += 1
        log = self.folder / f"stderr-{self._starts}"
        files = (os.devnull, "stdout", log.name)
        self.process = self.programs.start("serve", "--port", "0", *options, cwd=self.folder, files=files, env=self.env)
        until(lambda: log.exists() and (_ADDRESS.search(log.read_text()) or "Error" in log.read_text()))
        found = _ADDRESS.search(log.read_text())
        assert found, log.read_text()
        self.url = found[1]
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE)
        if wait:
            until(lambda: self.is_ready)
        return self

    @property
    def is_ready(self):
        try:
            return self.client.get("/ready").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def log(self):
        """Output of all processes."""
        return "".join(path.read_text() for path in sorted(self.folder.glob("stderr-*")))

    def stop(self, how=signal.SIGTERM):
        """End the process; return its exit code."""
        process, self.process = self.process, None
        os.kill(process, how)
        self.client.close()
        return self.programs.wait(process)

    def close(self):
        """Kill the process that a failed test left running."""
        if self.process is not None:
            self.stop(signal.SIGKILL)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def get(self, path, **parameters):
        """Return the JSON of a response with status 200."""
        answer = self.client.get(f"/api/v1{path}", params={k: v for k, v in parameters.items() if v is not None})
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.json()

    def post(self, stream, records, **parameters):
        """Post records as lines of JSON; return the response."""
        body = "".join(json.dumps(record) + "\n" for record in records)
        headers = {"content-type": "application/x-ndjson"}
        name = parameters.pop("name", None)
        if name is not None:
            headers["idempotency-key"] = name
        return self.client.post(f"/api/v1/streams/{stream}/records", content=body, headers=headers, params=parameters)


@contextmanager
def starting(programs, new_folder):
    """Yield a function that starts services, each in a folder of `new_folder`; kill those that still run at the end."""
    made = []

    def begin(config=WEB, *options, **env):
        made.append(Service(programs, new_folder(), config, **env))
        return made[-1].start(*options)

    try:
        yield begin
    finally:
        for service in made:
            service.close()


def get(address, **options):
    """Get an address without the cookies of a client."""
    return httpx.get(address, timeout=PATIENCE, **options)


def post(address, **options):
    """Post to an address without the cookies of a client."""
    return httpx.post(address, timeout=PATIENCE, **options)


def connect(service, timeout=PATIENCE):
    """Open a connection to a service."""
    host, port = service.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=timeout)


def raw(service, text):
    """Send bytes on a new connection; return all bytes received."""
    with connect(service) as connection:
        connection.sendall(text)
        return received(connection)


def received(connection):
    """Return all bytes received until the connection closes."""
    answer = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            answer += piece
    return answer


class Receiver:
    """A webhook that records its messages; it rejects the first `n_refused`."""

    def __init__(self, n_refused=0):
        self.messages, self.n_refused, receiver = [], n_refused, self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                message = json.loads(self.rfile.read(int(self.headers["content-length"])))
                is_refused = receiver.n_refused > 0
                receiver.n_refused -= is_refused
                if not is_refused:
                    receiver.messages.append(message)
                self.send_response(503 if is_refused else 200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def receiver(**options):
    """Run a webhook."""
    made = Receiver(**options)
    try:
        yield made
    finally:
        made.close()
