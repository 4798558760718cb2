"""Requests to the master: one place for the address, the token, trust, retries and error texts.

Every request that changes something is idempotent on the master's side (reports carry an identity,
checkpoints their UUID, the rest sets a value), so all methods are retried alike.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from determined import errors
from determined._json import encode
from determined._version import __version__

if TYPE_CHECKING:
    import urllib3

__all__ = ["MasterSession", "TrustSettings", "default_retry"]

logger = logging.getLogger("determined.core")

#: Header that carries the token of an allocation; `Authorization` is for users' tokens.
TOKEN_HEADER = "Grpc-Metadata-x-allocation-token"

#: Seconds until a connection attempt counts as failed.
CONNECT_TIMEOUT_S = 10.0
#: Seconds of silence after which an ordinary request counts as failed and is tried again.
READ_TIMEOUT_S = 120.0


class TrustSettings:
    """How the master's certificate is checked. Without effect on plain `http`."""

    def __init__(self, *, cert_file: str | None = None, cert_name: str | None = None) -> None:
        #: PEM file to trust beside the system's store, `noverify` to check nothing, or None.
        self.cert_file = cert_file or None
        #: Name expected on the certificate; None for the host in the address.
        self.cert_name = cert_name or None

    @classmethod
    def resolve(
        cls,
        env: Mapping[str, str],
        *,
        cert_file: str | None = None,
        cert_name: str | None = None,
    ) -> TrustSettings:
        """From DET_MASTER_CERT_FILE and DET_MASTER_CERT_NAME, which win, and the given fallbacks."""
        return cls(
            cert_file=env.get("DET_MASTER_CERT_FILE") or cert_file,
            cert_name=env.get("DET_MASTER_CERT_NAME") or cert_name,
        )

    def pool_options(self) -> dict[str, Any]:
        """These settings as arguments of a urllib3 pool manager."""
        import ssl

        if self.cert_file is not None and self.cert_file.lower() == "noverify":
            return {"cert_reqs": "CERT_NONE", "assert_hostname": False}
        context = ssl.create_default_context()
        if self.cert_file is not None:
            try:
                context.load_verify_locations(cafile=self.cert_file)
            except FileNotFoundError:
                # As the PyPI package does: a stale setting must not keep a master with a public
                # certificate from being used.
                logger.warning(
                    "DET_MASTER_CERT_FILE=%s does not exist; only the system's certificates are trusted",
                    self.cert_file,
                )
            except OSError as error:
                raise errors.MasterNotTrusted(
                    f"cannot read the master's certificate from {self.cert_file!r}: {error}; "
                    "it must be a PEM file"
                ) from error
        options: dict[str, Any] = {"ssl_context": context}
        if self.cert_name is not None:
            options["assert_hostname"] = self.cert_name
        return options


def default_retry(env: Mapping[str, str]) -> urllib3.Retry:
    """DET_RETRY_CONFIG if set, else 20 retries that together wait about 14 minutes.

    That outlasts a restart or an upgrade of the master (the target is ten minutes). Raises ValueError
    for a setting that is not the arguments of `urllib3.util.Retry` as JSON.
    """
    import urllib3

    # None means every method; answered 502 to 504 come from a proxy in front of a missing master.
    options: dict[str, Any] = {"allowed_methods": None, "status_forcelist": (502, 503, 504)}
    config = env.get("DET_RETRY_CONFIG")
    if config is None:
        # `other` are failures of TLS: mostly a certificate that is refused, which waiting does not
        # cure, but now and then a handshake with a master that is just being stopped.
        options.update(total=20, other=3, backoff_factor=0.5, backoff_max=60, backoff_jitter=0.5)
    else:
        try:
            given = json.loads(config)
            if "method_whitelist" in given:  # The name before urllib3 2, still found in the field.
                given["allowed_methods"] = given.pop("method_whitelist")
            options.update(given)
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"DET_RETRY_CONFIG must be a JSON object, not {config!r}: {error}") from error
    # An exhausted retry of 502 to 504 is an answer to report like any other.
    options.update(raise_on_status=False, redirect=0)
    try:
        return urllib3.Retry(**options)
    except TypeError as error:
        raise ValueError(f"DET_RETRY_CONFIG must hold arguments of urllib3.util.Retry: {error}") from error


class Answer:
    """A successful answer of the master."""

    def __init__(self, request: str, body: bytes) -> None:
        self._request = request
        #: The body, decoded from any content coding.
        self.body: Final = body

    def object(self) -> dict[str, Any]:
        """The body as a JSON object; an empty body is an empty object."""
        if not self.body:
            return {}
        try:
            value = json.loads(self.body)
        except ValueError as error:
            raise errors.BadResponseException(
                f"{self._request}: the answer is not JSON: {self.body[:200]!r}"
            ) from error
        if not isinstance(value, dict):
            raise errors.BadResponseException(
                f"{self._request}: the answer must be a JSON object, not {type(value).__name__}"
            )
        return value  # pyright: ignore[reportUnknownVariableType]


class MasterSession:
    """Authenticated requests to one master over kept-alive connections. Safe to share by threads."""

    def __init__(
        self,
        master_url: str,
        *,
        token: str,
        trust: TrustSettings | None = None,
        retry: urllib3.Retry | None = None,
        pool_factory: Callable[[MasterSession], urllib3.PoolManager] | None = None,
    ) -> None:
        """Connects at the first request, not here.

        `retry` None means `default_retry` with the process' environment. `pool_factory` replaces the
        transport.
        """
        #: Canonical address, without a slash at the end.
        self.master_url: Final = master_url
        self.trust: Final = trust or TrustSettings()
        self._token = token
        self._retry = retry
        self._pool_factory = pool_factory or _pool
        self._pool: urllib3.PoolManager | None = None

    def get(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
        retries: bool = True,
    ) -> Answer:
        """GET; `path` starts with a slash and is relative to the master's address."""
        return self._request("GET", path, None, params, read_timeout_s, retries)

    def post(self, path: str, body: Any = None) -> Answer:
        """POST of `body` as JSON; None sends no body."""
        return self._request("POST", path, body)

    def patch(self, path: str, body: Any) -> Answer:
        """PATCH of `body` as JSON."""
        return self._request("PATCH", path, body)

    def close(self) -> None:
        """Closes idle connections. A later request opens new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    def _request(
        self,
        method: str,
        path: str,
        body: Any,
        params: Mapping[str, str] | None = None,
        read_timeout_s: float = READ_TIMEOUT_S,
        retries: bool = True,
    ) -> Answer:
        import urllib3
        from urllib3 import exceptions

        if self._retry is None:
            self._retry = default_retry(os.environ)
        pool = self._pool
        if pool is None:
            pool = self._pool = self._pool_factory(self)
        headers = {
            TOKEN_HEADER: f"Bearer {self._token}",
            "User-Agent": f"determined-python/{__version__}",
        }
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = encode(body)
        url = self.master_url + path
        if params:
            from urllib.parse import urlencode

            url = f"{url}?{urlencode(params)}"
        what = f"{method} {self.master_url}{path}"
        try:
            response = pool.urlopen(
                method,
                url,
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=read_timeout_s),
                retries=self._retry if retries else urllib3.Retry(0, raise_on_status=False),
                # A redirect would turn a POST into a GET and could carry the token elsewhere.
                redirect=False,
            )
        except exceptions.HTTPError as error:
            raise _unreachable(what, error) from error
        if response.status >= 300:
            raise _refused(what, response.status, response.data, response.headers.get("Location"))
        return Answer(what, response.data)


def _pool(session: MasterSession) -> urllib3.PoolManager:
    import urllib3

    # The metrics thread, the preemption thread and the user's own; more only cost a reconnection.
    options: dict[str, Any] = {"num_pools": 2, "maxsize": 4}
    if session.master_url.startswith("https://"):
        options.update(session.trust.pool_options())
    proxy = _proxy_for(session.master_url)
    if proxy is not None:
        return urllib3.ProxyManager(proxy, **options)
    return urllib3.PoolManager(**options)


def _proxy_for(master_url: str) -> str | None:
    """The proxy the environment names for this master; None to go straight."""
    from urllib import request
    from urllib.parse import urlsplit

    parts = urlsplit(master_url)
    # What every HTTP client of Python asks, but missing in the type stubs.
    bypass: Callable[[str, Mapping[str, str]], bool] = getattr(request, "proxy_bypass_environment")  # noqa: B009
    proxies = request.getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or bypass(parts.netloc, proxies):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _unreachable(what: str, error: Exception) -> errors.MasterNotFoundException:
    from urllib3 import exceptions

    cause = error.reason if isinstance(error, exceptions.MaxRetryError) and error.reason else error
    if isinstance(cause, exceptions.SSLError):
        return errors.MasterNotTrusted(
            f"{what}: no trusted connection: {cause}; set DET_MASTER_CERT_FILE to the certificate to "
            "trust (or to noverify) and DET_MASTER_CERT_NAME to the name on it"
        )
    return errors.MasterNotFoundException(f"{what}: the master did not answer: {cause}")


def _refused(what: str, status: int, body: bytes, location: str | None) -> errors.APIException:
    message = f"{what}: status {status}: {_reason(body)}"
    if status == 401:
        return errors.UnauthenticatedException(message, status_code=status)
    if status == 403:
        return errors.ForbiddenException(message, status_code=status)
    if status == 404:
        return errors.NotFoundException(message, status_code=status)
    if location is not None:
        message = f"{what}: redirected to {location!r}; the address of the master must not redirect"
    return errors.APIException(message, status_code=status)


def _reason(body: bytes) -> str:
    """The human text of an error answer: `message`, `error.message`, `error.error`, else the raw text."""
    text = body.decode(errors="replace").strip()
    try:
        answer: Any = json.loads(text)
    except ValueError:
        answer = None  # A proxy's page, for example.
    if isinstance(answer, dict):
        fields = cast("dict[str, Any]", answer)
        inner: Any = fields.get("error")
        nested = cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}
        for found in (fields.get("message"), nested.get("message"), nested.get("error")):
            if found:
                return str(found)
    return text[:500] or "no reason given"
