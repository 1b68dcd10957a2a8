"""The static page, from memory, under a strict content policy."""

from __future__ import annotations

from headrace import ui
from headrace.api.exchange import Exchange

PATHS = frozenset(ui.ASSETS)


class UiAsset:
    """One file of the page as an endpoint."""

    def __init__(self, path: str) -> None:
        self._data, content_type = ui.read_asset(path)
        self._headers = [
            (b"content-type", content_type.encode()),
            (b"content-security-policy", ui.CONTENT_SECURITY_POLICY.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-cache"),
        ]

    async def __call__(self, exchange: Exchange) -> None:
        """Send the file."""
        await exchange.respond(self._data, headers=self._headers)
