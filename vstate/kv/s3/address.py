"""Address: where a bucket is, and the options with which obstore reaches it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from vstate.arguments import check_seconds
from vstate.backoff import REACH_SECONDS, Timeout
from vstate.errors import InvalidInput
from vstate.kv.servers import check_url

_SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
_CLIENT_OPTIONS = frozenset(
    ["allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "default_headers"]
    + ["http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle"]
    + ["http2_only", "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate"]
    + ["proxy_excludes", "root_certificate", "randomize_addresses", "read_timeout", "user_agent"]
)
_PUBLIC_OPTIONS = frozenset(
    ["endpoint", "aws_endpoint", "region", "aws_region", "default_region", "virtual_hosted_style_request"]
    + ["skip_signature", "unsigned_payload", "disable_bulk_delete", "s3_express", "checksum_algorithm"]
    + ["server_side_encryption", "sse_kms_key_id", "sse_bucket_key_enabled", "request_payer", "allow_http"]
    + ["connect_timeout", "read_timeout", "user_agent", "account_name", "use_emulator", "pool_idle_timeout"]
    + ["http1_only", "http2_only", "pool_max_idle_per_host", "root_certificate", "allow_invalid_certificates"]
)
"""Options that are surely no secret. An allow-list: secrets have other names in each service and release."""

_ENDPOINT = re.compile(r"(aws_)?endpoint(_url)?(_s3)?", re.IGNORECASE)


class Address:
    """The URL and the options of a bucket, checked. InvalidInput shows no value of an option."""

    def __init__(self, url: str, options: Mapping[str, Any] | None, timeout: float | None) -> None:
        self.url = _check_url(url)
        self.options = _as_options(options or {}, "options")
        self.given = self.options.pop("timeout", timeout)
        check_seconds("timeout", self.given, none="None for the default")
        self.timeout, self.to_reach = Timeout.of(self.given, 60.0)
        """Seconds for which a request is repeated, and for which a service out of reach gets requests."""
        self.arguments = self._check_options()
        """The options as obstore takes them."""
        # Directory buckets of S3 Express list in no order.
        directory_bucket = urlsplit(self.url).netloc.endswith("--x-s3")
        self.ordered = not (directory_bucket or self.options.get("s3_express"))
        """Whether a listing comes in the order of the names."""

    @property
    def endpoint(self) -> str:
        """The service, if an option names it."""
        return " ".join(map(str, self._endpoints()))

    @property
    def public(self) -> bool:
        """Whether the options surely hold no secret."""
        names = [*self.options, *self._client_options()]
        return all(name in _PUBLIC_OPTIONS or name == "client_options" for name in names)

    def _check_options(self) -> dict[str, Any]:
        arguments = {name: value for name, value in self.options.items() if name not in _CLIENT_OPTIONS}
        client = {name: value for name, value in self.options.items() if name in _CLIENT_OPTIONS}
        client |= self._client_options()
        arguments.pop("client_options", None)
        if "retry_config" in arguments or "timeout" in client:
            # If obstore repeated a conditional write that had succeeded, the write would look refused.
            raise InvalidInput(
                "the `timeout` of the store says how long to try: leave out retry_config and timeout"
            )
        for endpoint in self._endpoints():
            parts = urlsplit(check_url(endpoint, "http", "https"))
            if not parts.hostname or parts.username is not None:
                raise InvalidInput("endpoint is a URL such as https://host:9000, without a password in it")
            if parts.scheme == "http" and str(client.get("allow_http", "")).lower() not in ("true", "1"):
                raise InvalidInput(
                    "endpoint has no TLS, so anybody on the way can read everything: use https, or give the "
                    "option allow_http=True"
                )
        half = timedelta(seconds=self.timeout / 2)
        limits = {
            "timeout": half,
            "connect_timeout": min(half, timedelta(seconds=min(self.to_reach, REACH_SECONDS))),
        }
        # Bucket repeats requests, and obstore never does.
        retries = {"max_retries": 0, "retry_timeout": half}
        return {**arguments, "client_options": {**limits, **client}, "retry_config": retries}

    def _client_options(self) -> dict[str, Any]:
        return _as_options(self.options.get("client_options") or {}, "client_options")

    def _endpoints(self) -> list[Any]:
        return [value for name, value in self.options.items() if _ENDPOINT.fullmatch(name)]


def _as_options(options: object, name: str) -> dict[str, Any]:
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise InvalidInput(f"the {name} of a bucket are a dict of values by name, and names are str")
    return dict(options)


def _check_url(url: str) -> str:
    parts = urlsplit(check_url(url, *_SCHEMES))
    # abfs://container@account.host is how Azure writes it.
    if "@" in parts.netloc and (parts.password is not None or not parts.scheme.startswith("abfs")):
        raise InvalidInput(
            "a bucket's URL holds no credentials: give them in the options or in the environment"
        )
    if ":" in parts.netloc or not parts.netloc or parts.query:
        raise InvalidInput(
            "a bucket is given as s3://bucket/directory, gs://bucket/directory or az://container/..., with "
            "options as options={...}"
        )
    return url.rstrip("/")
