"""The outside service that REPORT calls: unavailable at first for some chunks, and it knows what it has accepted."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


class Notifier:
    """An HTTP server on this machine. Reports are accepted once per workflow id."""

    def __init__(self, busy_for: frozenset[str]) -> None:
        """``busy_for``: the workflows whose first report is answered 503."""
        self.accepted: Counter[str] = Counter()
        #: Answers 503, and reports that came again after they had been accepted.
        self.refused = self.repeats = 0
        self._busy_for = set(busy_for)
        self._lock = threading.Lock()
        notifier = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = notifier.hear(body["workflowId"])
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="notifier", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/reports"

    def hear(self, workflow_id: str) -> tuple[HTTPStatus, dict[str, bool]]:
        """Take a report, or not."""
        with self._lock:
            if workflow_id in self._busy_for:
                self._busy_for.remove(workflow_id)
                self.refused += 1
                return HTTPStatus.SERVICE_UNAVAILABLE, {}
            is_repeat = workflow_id in self.accepted
            if is_repeat:
                self.repeats += 1
            else:
                self.accepted[workflow_id] += 1
            return HTTPStatus.OK, {"isRepeat": is_repeat}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
