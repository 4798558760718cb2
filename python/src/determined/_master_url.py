"""One spelling for a master's address."""

from __future__ import annotations

from urllib.parse import urlsplit

__all__ = ["canonicalize_master_url"]


def canonicalize_master_url(url: str) -> str:
    """`url` with scheme and port, and without a slash at the end, ready for a path to be appended.

    Without a scheme it is `http` and port 8080; with one, the scheme's own port. A path prefix stays.
    Raises ValueError without a host, and for user names, passwords, queries and fragments.
    """
    if url.startswith("https://"):
        default_port = 443
    elif url.startswith("http://"):
        default_port = 80
    else:
        url, default_port = f"http://{url}", 8080
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"the master address {url!r} names no host")
    if parts.username or parts.password or parts.query or parts.fragment:
        # The address may hold a password: it is not repeated.
        raise ValueError(
            f"the address of master {parts.hostname!r} must not hold a user name, password, query or fragment"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or default_port}{parts.path}".rstrip("/")
