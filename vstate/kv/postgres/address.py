"""Address: where a PostgreSQL database is, from a URL or a connection string of libpq."""

from __future__ import annotations

import os
import re
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from vstate.errors import InvalidInput

_SECRETS: Final = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")


class Address:
    """A URL or a connection string of libpq, shown without secrets.

    InvalidInput if it cannot be read, or if libpq would read it in another way than it looks.
    """

    def __init__(self, dsn: str) -> None:
        if not isinstance(dsn, str):
            raise InvalidInput(
                f"a PostgreSQL database is given as a URL or a connection string, not as {type(dsn).__name__}"
            )
        self.dsn = dsn
        # Neither the text nor libpq's complaint is shown: any part of them may belong to a password.
        if not _is_plain(dsn) or (parameters := _parameters(dsn)) is None:
            raise InvalidInput(
                "this PostgreSQL URL or connection string cannot be read: write "
                "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or host=HOST dbname=DATABASE and so on; in a "
                "URL, percent-encode / ? # @ [ ] : % in the password"
            )
        self.parameters = parameters

    @property
    def holds_secret(self) -> bool:
        return any(self.parameters.get(name) for name in _SECRETS)

    def is_shown_by(self, text: str) -> bool:
        """Whether the text holds a secret of this address, or of the environment."""
        secrets = [self.parameters.get(name) for name in _SECRETS] + [os.environ.get("PGPASSWORD")]
        return any(secret in text for secret in secrets if secret)

    def __str__(self) -> str:
        host = (
            self.parameters.get("host") or self.parameters.get("hostaddr") or os.environ.get("PGHOST") or ""
        )
        port = self.parameters.get("port")
        name = self.parameters.get("dbname") or os.environ.get("PGDATABASE") or ""
        return f"postgresql://{host}{f':{port}' if port else ''}/{name}"


def _is_plain(dsn: str) -> bool:
    """Whether a URL has one reading. libpq takes "u:p@ss@host" for a host called "ss@host"."""
    match = re.match(r"postgres(?:ql)?://([^/?]*)([^?]*)", dsn)
    if match is None:
        return "://" not in dsn.partition("=")[0]
    return match[1].count("@") <= 1 and "@" not in match[2]


def _parameters(dsn: str) -> dict[str, Any] | None:
    try:
        parameters = conninfo_to_dict(dsn)
        ports = str(parameters.get("port") or "").split(",")
        if all(not port or (port.isdecimal() and 0 < int(port) < 65536) for port in ports):
            return parameters
    except (psycopg.Error, UnicodeError, ValueError):
        pass
    return None
