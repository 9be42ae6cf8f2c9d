"""References to secrets. Descriptions, plans and closures carry a reference, never the secret.

Each process that connects resolves it from its own environment or disk, for the client library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from penstock.errors import ConnectorError, GraphError

if TYPE_CHECKING:
    from penstock.handles import Json


@dataclass(frozen=True, slots=True)
class EnvironmentSecret:
    """The value of an environment variable of the process that connects. Made by ``ps.kafka.env``."""

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.name):
            # The name is not shown: it may be the secret itself.
            msg = "env() takes the name of an environment variable (letters, digits, '_'), as in env('KAFKA_PASSWORD')."
            raise GraphError(msg)

    def __repr__(self) -> str:
        return f"env({self.name!r})"

    def resolve(self) -> str:
        """The value.

        Raises:
            ConnectorError: the variable is not set, or empty, in this process.
        """
        value = os.environ.get(self.name, "")
        if not value:
            msg = (
                f"Environment variable {self.name} is not set in this process. Set it for the driver, and for its "
                "executors too (spark.executorEnv or the cluster's own way), or read with read_in='driver'."
            )
            raise ConnectorError(msg)
        return value


@dataclass(frozen=True, slots=True)
class FileSecret:
    """The content of a file on the machine that connects, without a newline at its end. Made by ``ps.kafka.file``."""

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not os.path.isabs(self.path) or "\n" in self.path:
            msg = "file() takes an absolute path, as in file('/run/secrets/kafka-password'). Executors run elsewhere."
            raise GraphError(msg)

    def __repr__(self) -> str:
        return f"file({self.path!r})"

    def resolve(self) -> str:
        """The content, read by each call: the next client uses a changed secret.

        Raises:
            ConnectorError: the file cannot be read, is empty, or is not text.
        """
        try:
            value = Path(self.path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            value = ""  # the error would show some of it
        except OSError as error:
            msg = (
                f"The secret in {self.path} cannot be read ({error.strerror}). Put the file there on the driver and on "
                "all executors, readable for their user, or read with read_in='driver'."
            )
            raise ConnectorError(msg) from None
        if not value:
            msg = f"The secret in {self.path} is empty, or not text in UTF-8. Write the secret into that file."
            raise ConnectorError(msg)
        return value


SecretRef: TypeAlias = "EnvironmentSecret | FileSecret"
Option: TypeAlias = "str | int | float | bool | EnvironmentSecret | FileSecret"


def env(name: str) -> EnvironmentSecret:
    """The value of a client property, in an environment variable of each process that connects.

    Raises:
        GraphError: ``name`` is no name of a variable.

    >>> env("KAFKA_PASSWORD")
    env('KAFKA_PASSWORD')
    """
    return EnvironmentSecret(name)


def file(path: str | os.PathLike[str]) -> FileSecret:
    """The value of a client property, in a file on each machine that connects.

    Raises:
        GraphError: the path is not absolute.

    >>> file("/run/secrets/kafka-password")
    file('/run/secrets/kafka-password')
    """
    return FileSecret(os.fspath(path))


def resolve(options: Mapping[str, Option]) -> dict[str, str | int | float | bool]:
    """Client properties with their secrets resolved, for the client library only.

    Raises:
        ConnectorError: a secret is not there; the message names its reference.
    """
    return {
        name: value.resolve() if isinstance(value, EnvironmentSecret | FileSecret) else value
        for name, value in options.items()
    }


def options_to_json(options: Mapping[str, Option]) -> dict[str, Json]:
    """Client properties as JSON, with references to secrets as references.

    >>> options_to_json({"linger.ms": 5, "sasl.password": env("KAFKA_PASSWORD")})
    {'linger.ms': 5, 'sasl.password': {'env': 'KAFKA_PASSWORD'}}
    """
    return {name: _to_json(value) for name, value in options.items()}


def options_from_json(options: Mapping[str, Any]) -> dict[str, Option]:
    """The client properties that ``options_to_json`` has written."""
    return {name: _from_json(value) for name, value in options.items()}


def _to_json(value: Option) -> Json:
    if isinstance(value, EnvironmentSecret):
        return {"env": value.name}
    return {"file": value.path} if isinstance(value, FileSecret) else value


def _from_json(value: Any) -> Option:
    if not isinstance(value, Mapping):
        return cast("Option", value)
    return EnvironmentSecret(value["env"]) if "env" in value else FileSecret(value["file"])


_SECRET_NAME: Final = re.compile(
    r"(password|passwd|passphrase|secret|token|access[._]?key|key[.]pem|sasl[.](jaas|oauthbearer)[.]config)$",
    re.IGNORECASE,
)
_SECRET_VALUE: Final = re.compile(r"PRIVATE KEY-----|//[^/@\s]*:[^/@\s]*@|(?i:\b(password|passwd|secret|token)\s*=)")


def check_option(name: str, value: object, *, connector: str = "kafka") -> None:
    """Refuse a written-out secret, recognised by the property's name or by its value.

    ``connector`` is the one whose ``env`` and ``file`` the message names.

    Raises:
        GraphError: the value is one. The message does not show it.
    """
    if isinstance(value, EnvironmentSecret | FileSecret):
        return
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(str(value)):
        msg = (
            f"Option {name!r} holds a secret, which must not be written into a pipeline. Refer to it, as in "
            f"{{{name!r}: ps.{connector}.env('{connector.upper()}_SECRET')}} or "
            f"ps.{connector}.file('/run/secrets/{connector}')."
        )
        raise GraphError(msg)
