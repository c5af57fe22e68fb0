"""HTTP: one request per attempt. Whether and when it is tried again is said by the task's definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from broker_engine.model.limits import MAX_PAYLOAD_BYTES
from broker_engine.worker.outcomes import TaskFailed, TaskFailedForGood
from broker_engine.worker.system.extras import optional

#: Conductor's.
DEFAULT_TIMEOUT_MS = 3_000
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})
MAX_REDIRECTS = 10


def call(data: Mapping[str, Any]) -> dict[str, Any]:
    """Send the request that the input describes.

    Args:
        data: ``http_request`` with, or itself the fields ``uri``, ``method`` (GET), ``headers``, ``body``, ``accept``,
            ``contentType`` (both ``application/json``), ``connectionTimeOut`` and ``readTimeOut`` (ms, 3000).

    Returns:
        ``response`` with ``statusCode``, ``reasonPhrase``, ``headers`` and ``body`` (parsed where it is JSON).

    Raises:
        TaskFailed: HTTP_<status> with the response as output, HTTP_TIMEOUT, HTTP_UNREACHABLE.
        TaskFailedForGood: HTTP_REQUEST, the input does not describe a request; HTTP_TOO_LARGE.
    """
    httpx = optional("httpx", needed_for="HTTP")
    request = _request(data)
    read_ms, connect_ms = _milliseconds(request, "readTimeOut"), _milliseconds(request, "connectionTimeOut")
    timeout = httpx.Timeout(read_ms / 1_000, connect=connect_ms / 1_000)
    method, uri = _method(request), request["uri"]
    try:
        # A client of its own per call: cookies of one workflow are not another's.
        with (
            httpx.Client(timeout=timeout, follow_redirects=True, max_redirects=MAX_REDIRECTS) as client,
            client.stream(method, uri, headers=_headers(request), content=_content(request)) as response,
        ):
            body = _read(response)
    except httpx.TimeoutException as error:
        raise TaskFailed(
            f"{method} {uri} gave no answer within {connect_ms} ms (connect) and {read_ms} ms (read)",
            code="HTTP_TIMEOUT",
        ) from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise TaskFailedForGood(f"uri {uri!r} cannot be called: {error}", code="HTTP_REQUEST") from error
    except httpx.HTTPError as error:
        raise TaskFailed(f"{method} {uri}: {error or type(error).__name__}", code="HTTP_UNREACHABLE") from error
    output = {
        "response": {
            "statusCode": response.status_code,
            "reasonPhrase": response.reason_phrase,
            "headers": dict(response.headers.multi_items()),
            "body": body,
        }
    }
    if not response.is_success:
        code = f"HTTP_{response.status_code}"
        raise TaskFailed(
            f"{method} {uri} answered {response.status_code} {response.reason_phrase}", code=code, output=output
        )
    return output


def _request(data: Mapping[str, Any]) -> Mapping[str, Any]:
    request = data.get("http_request", data)
    if not isinstance(request, Mapping) or not isinstance(request.get("uri"), str) or not request["uri"].strip():
        raise TaskFailedForGood(
            "uri is missing: give http_request.uri (or uri) as a text such as https://host/path", code="HTTP_REQUEST"
        )
    return request


def _method(request: Mapping[str, Any]) -> str:
    method = str(request.get("method") or "GET").upper()
    if method not in METHODS:
        raise TaskFailedForGood(f"method {method} is not one of {', '.join(sorted(METHODS))}", code="HTTP_REQUEST")
    return method


def _milliseconds(request: Mapping[str, Any], name: str) -> int:
    given = request.get(name)
    if given is None:
        return DEFAULT_TIMEOUT_MS
    try:
        value = int(given)
    except (TypeError, ValueError):
        value = 0
    if value <= 0:
        raise TaskFailedForGood(f"{name} must be a positive number of milliseconds, not {given!r}", code="HTTP_REQUEST")
    return value


def _headers(request: Mapping[str, Any]) -> dict[str, str]:
    given = request.get("headers") or {}
    if not isinstance(given, Mapping):
        raise TaskFailedForGood(f"headers must be an object, not {given!r}", code="HTTP_REQUEST")
    headers = {
        str(name): ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in given.items()
    }
    present = {name.lower() for name in headers}
    if "accept" not in present:
        headers["Accept"] = str(request.get("accept") or "application/json")
    if request.get("body") is not None and "content-type" not in present:
        headers["Content-Type"] = str(request.get("contentType") or "application/json")
    return headers


def _content(request: Mapping[str, Any]) -> bytes | None:
    body = request.get("body")
    if body is None:
        return None
    return body.encode() if isinstance(body, str) else orjson.dumps(body)


def _read(response: Any) -> Any:
    """The body, bounded while it is read: as JSON where it is some, as text otherwise."""
    content = bytearray()
    for chunk in response.iter_bytes():
        content += chunk
        if len(content) > MAX_PAYLOAD_BYTES:
            raise TaskFailedForGood(
                f"the response has more than {MAX_PAYLOAD_BYTES} bytes: let the server store it and answer a reference",
                code="HTTP_TOO_LARGE",
            )
    if not content:
        return None
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return content.decode(response.encoding or "utf-8", errors="replace")
