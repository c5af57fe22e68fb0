"""HTTP calls of workflows, against a real server."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from broker_engine.model.limits import MAX_PAYLOAD_BYTES
from broker_engine.worker import TaskFailed, TaskFailedForGood
from broker_engine.worker.system.calls import call


class Handler(BaseHTTPRequestHandler):
    """Answers what the path says; echoes what it got."""

    def do_any(self) -> None:
        self.server.calls.append(self.path)  # type: ignore[attr-defined]  # ours, below
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        status, answer, kind = 200, b"", "application/json"
        match self.path.split("/")[1:]:
            case ["echo"]:
                answer = json.dumps({"method": self.command, "body": body, "headers": dict(self.headers)}).encode()
            case ["status", code]:
                status, answer = int(code), b'{"why": "closed"}'
            case ["text"]:
                answer, kind = "grüß".encode(), "text/plain; charset=utf-8"
            case ["slow"]:
                time.sleep(1.0)
            case ["large"]:
                answer = b"x" * (MAX_PAYLOAD_BYTES + 1)
            case ["moved"]:
                status = 302
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/text")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_DELETE = do_any

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadingHTTPServer]:
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.calls = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


@pytest.fixture
def uri(server: ThreadingHTTPServer) -> str:
    server.calls.clear()  # type: ignore[attr-defined]
    return f"http://127.0.0.1:{server.server_port}"


def test_a_request_carries_method_body_and_headers(uri: str) -> None:
    request = {"uri": f"{uri}/echo", "method": "post", "body": {"n": 1}, "headers": {"X-Trace": "7"}}

    response = call({"http_request": request})["response"]

    assert (response["statusCode"], response["reasonPhrase"]) == (200, "OK")
    got = response["body"]
    assert (got["method"], json.loads(got["body"])) == ("POST", {"n": 1})
    assert got["headers"]["X-Trace"] == "7"
    assert got["headers"]["Content-Type"] == "application/json"
    assert got["headers"]["Accept"] == "application/json"


def test_the_request_may_stand_in_the_input_itself_and_is_a_get(uri: str) -> None:
    body = call({"uri": f"{uri}/echo", "accept": "text/csv"})["response"]["body"]

    assert (body["method"], body["headers"]["Accept"]) == ("GET", "text/csv")


def test_a_text_is_sent_as_it_is_and_answered_as_it_is(uri: str) -> None:
    request = {"uri": f"{uri}/echo", "method": "PUT", "body": "a,b", "contentType": "text/csv"}
    got = call(request)["response"]["body"]

    assert (got["body"], got["headers"]["Content-Type"]) == ("a,b", "text/csv")
    assert call({"uri": f"{uri}/text"})["response"]["body"] == "grüß"


def test_a_redirect_is_followed(uri: str) -> None:
    assert call({"uri": f"{uri}/moved"})["response"]["body"] == "grüß"


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_any_other_answer_fails_with_its_status_as_code_and_the_response_as_output(uri: str, status: int) -> None:
    with pytest.raises(TaskFailed, match=f"answered {status}") as failed:
        call({"uri": f"{uri}/status/{status}"})

    assert not isinstance(failed.value, TaskFailedForGood)
    assert failed.value.code == f"HTTP_{status}"
    assert failed.value.output is not None
    assert failed.value.output["response"]["body"] == {"why": "closed"}


def test_one_attempt_sends_one_request(server: ThreadingHTTPServer, uri: str) -> None:
    with pytest.raises(TaskFailed):
        call({"uri": f"{uri}/status/503"})

    assert server.calls == ["/status/503"]  # type: ignore[attr-defined]


def test_a_server_that_does_not_answer_in_time_fails_the_attempt(uri: str) -> None:
    with pytest.raises(TaskFailed, match="gave no answer within 3000 ms") as failed:
        call({"uri": f"{uri}/slow", "readTimeOut": 200})

    assert failed.value.code == "HTTP_TIMEOUT"


def test_a_server_that_is_not_there_fails_the_attempt() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    with pytest.raises(TaskFailed) as failed:
        call({"uri": f"http://127.0.0.1:{port}/"})

    assert failed.value.code == "HTTP_UNREACHABLE"


def test_a_response_over_the_limit_is_refused_while_it_is_read(uri: str) -> None:
    with pytest.raises(TaskFailedForGood, match=f"more than {MAX_PAYLOAD_BYTES} bytes") as failed:
        call({"uri": f"{uri}/large"})

    assert failed.value.code == "HTTP_TOO_LARGE"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "uri is missing"),
        ({"uri": 5}, "uri is missing"),
        ({"uri": "ftp://host/file"}, "uri 'ftp://host/file' cannot be called"),
        ({"uri": "http://h/", "method": "FETCH"}, "method FETCH is not one of DELETE"),
        ({"uri": "http://h/", "readTimeOut": -1}, "readTimeOut must be a positive number"),
        ({"uri": "http://h/", "connectionTimeOut": "soon"}, "connectionTimeOut must be a positive number"),
        ({"uri": "http://h/", "headers": ["a"]}, "headers must be an object"),
    ],
)
def test_what_describes_no_request_is_never_tried_again(request_: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskFailedForGood) as failed:
        call({"http_request": request_})

    assert failed.value.code == "HTTP_REQUEST"
    assert message in str(failed.value)
