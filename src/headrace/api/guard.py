"""What every request passes: its id, Host and key checks, CORS, error envelopes, the access log."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.api.errors import internal_error, status_error
from headrace.api.exchange import BodyBudget, ClientGone, Exchange
from headrace.errors import RequestError
from headrace.gateway.config import is_loopback
from headrace.gateway.gateway import Gateway

logger = logging.getLogger("headrace.access")
error_logger = logging.getLogger("headrace.api")

PROBES = frozenset({"/livez", "/readyz", "/health"})
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_EXPOSED = b"retry-after, x-headrace-ignored, x-request-id, x-should-retry"
_PREFLIGHT_HEADERS = [
    (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
    # The star stands for all others: clients send a dozen of their own.
    (b"access-control-allow-headers", b"authorization, content-type, *"),
    (b"access-control-max-age", b"600"),
]


class Guard:
    """The outermost application. `public` paths need no key."""

    def __init__(self, gateway: Gateway, app: ASGIApp, public: frozenset[str]) -> None:
        self._gateway = gateway
        self._app = app
        self._public = public | PROBES
        config = gateway.config
        self._budget = BodyBudget(config.limits.inflight_body_bytes)
        self._key_digest = None if config.api_key is None else _digest(config.api_key.encode())
        self._checks_host = is_loopback(config.host)
        self._origins = frozenset(origin.encode() for origin in config.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request; other kinds of connection are not served."""
        if scope["type"] != "http":
            return
        started_s = time.monotonic()
        exchange = Exchange(scope, receive, send, self._gateway, self._budget)
        exchange.extra_headers = self._extra_headers(exchange)
        scope["app"] = self
        scope["headrace.exchange"] = exchange
        try:
            if await self._check(exchange):
                await self._app(scope, receive, send)
        except ClientGone:
            exchange.status = exchange.status or 499
        except asyncio.CancelledError:
            # The server ends and does not wait any longer; nobody is left to be told.
            exchange.abort()
        except HTTPException as error:
            headers = [(k.lower().encode(), v.encode()) for k, v in (error.headers or {}).items()]
            await self._respond_error(exchange, _http_error(error), headers)
        except RequestError as error:
            await self._respond_error(exchange, error)
        except Exception:
            error_logger.exception("request %s failed", exchange.request_id)
            await self._respond_error(exchange, internal_error())
        finally:
            exchange.release_body()
            self._log(exchange, started_s)

    async def _respond_error(
        self,
        exchange: Exchange,
        error: RequestError,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        if exchange.is_started:
            # Too late for a status: a cut connection is the only honest sign.
            exchange.abort()
        else:
            await exchange.respond_error(error, headers or [])

    # ---- checks ----

    async def _check(self, exchange: Exchange) -> bool:
        """False when the request was answered here. Raises RequestError when it is refused."""
        if self._checks_host:
            self._check_host(exchange)
        if self._origins and self._is_preflight(exchange):
            await exchange.respond(b"", status=204, headers=_PREFLIGHT_HEADERS)
            return False
        if self._key_digest is not None and exchange.scope["path"] not in self._public:
            self._check_key(exchange, self._key_digest)
        return True

    def _check_host(self, exchange: Exchange) -> None:
        """On a loopback address, a page of the web must not reach us under a name of its own."""
        host = (exchange.header(b"host") or b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
        if not (is_loopback(name) or name.endswith(".localhost")):
            raise RequestError(
                "The Host header names another machine; use localhost or 127.0.0.1.",
                code="host_not_allowed",
                status=403,
            )

    @staticmethod
    def _check_key(exchange: Exchange, digest: bytes) -> None:
        value = exchange.header(b"authorization") or b""
        scheme, _, key = value.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(_digest(key.strip()), digest):
            raise RequestError(
                "The API key is missing or wrong; send Authorization: Bearer KEY.",
                code="invalid_api_key",
                status=401,
            )

    def _is_preflight(self, exchange: Exchange) -> bool:
        return (
            exchange.scope["method"] == "OPTIONS"
            and exchange.header(b"access-control-request-method") is not None
        )

    # ---- headers and log ----

    def _extra_headers(self, exchange: Exchange) -> list[tuple[bytes, bytes]]:
        given = exchange.header(b"x-request-id")
        if given is None or _REQUEST_ID.fullmatch(given) is None:
            given = b"req-" + secrets.token_hex(12).encode()
        exchange.request_id = given.decode()
        headers = [(b"x-request-id", given)]
        if self._origins:
            headers.append((b"vary", b"origin"))
            origin = exchange.header(b"origin")
            if origin is not None and (origin in self._origins or b"*" in self._origins):
                headers.append((b"access-control-allow-origin", origin))
                headers.append((b"access-control-expose-headers", _EXPOSED))
        return headers

    def _log(self, exchange: Exchange, started_s: float) -> None:
        scope = exchange.scope
        self._gateway.metrics.count_response(exchange.status)
        quiet = scope["path"] in PROBES or scope["path"] == "/metrics"
        logger.log(
            logging.DEBUG if quiet else logging.INFO,
            "%s %s %d %.1f ms %s%s",
            scope["method"],
            scope["path"][:200],
            exchange.status,
            (time.monotonic() - started_s) * 1e3,
            exchange.request_id,
            exchange.note,
        )


def _http_error(error: HTTPException) -> RequestError:
    if error.status_code == 404:
        return RequestError("There is nothing at this path.", status=404, code="not_found")
    if error.status_code == 405:
        message = "This path does not take this method."
        return RequestError(message, status=405, code="method_not_allowed")
    return status_error(error.status_code)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
