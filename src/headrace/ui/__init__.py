"""The one static page: its files, where they are served, and the policy they live under."""

from __future__ import annotations

from pathlib import Path

# URL path -> (file in this folder, content type).
ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/ui/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/ui/markdown.js": ("markdown.js", "text/javascript; charset=utf-8"),
    "/ui/style.css": ("style.css", "text/css; charset=utf-8"),
}
# The page loads nothing from elsewhere, runs no inline script and may not be framed.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def read_asset(url_path: str) -> tuple[bytes, str]:
    """Content and content type of one of ASSETS; KeyError for any other path."""
    name, content_type = ASSETS[url_path]
    return (Path(__file__).parent / name).read_bytes(), content_type
