"""Which properties of the client users may set: not those that are penstock's to decide, and no secrets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import GraphError
from penstock.sources.kafka.secrets import EnvironmentSecret, FileSecret, Option, check_option

_ITS_PARTITIONS: Final = "leave it out: penstock gives partitions to readers itself and joins no group"
_ITS_READING: Final = "leave it out: penstock needs it as it sets it"

_OWNED: Final = {
    "bootstrap.servers": "write servers=",
    "metadata.broker.list": "write servers=",
    "group.id": "write group=",
    "auto.offset.reset": "write start=, for a first start, and on_lost_offsets=, for later",
    "isolation.level": "write isolation=",
    "enable.auto.commit": "write commit=",
    "auto.commit.enable": "write commit=",
    "auto.commit.interval.ms": "write commit='periodic' and commit_interval=",
    "enable.auto.offset.store": "write commit=",
    "offset.store.method": "write commit=",
    "topic.blacklist": "write pattern=, which can leave out what it should not match",
    "max.poll.records": "write max_rows_per_batch=",
    "enable.partition.eof": _ITS_READING,
    "consume.callback.max.messages": _ITS_READING,
    "group.instance.id": _ITS_PARTITIONS,
    "group.protocol": _ITS_PARTITIONS,
    "group.protocol.type": _ITS_PARTITIONS,
    "group.remote.assignor": _ITS_PARTITIONS,
    "heartbeat.interval.ms": _ITS_PARTITIONS,
    "max.poll.interval.ms": _ITS_PARTITIONS,
    "partition.assignment.strategy": _ITS_PARTITIONS,
    "session.timeout.ms": _ITS_PARTITIONS,
    "key.deserializer": "leave it out: keys are bytes, decode them in the pipeline",
    "value.deserializer": "leave it out: values are bytes, decode them in the pipeline",
    "sasl.jaas.config": "this is the Java client's: write sasl.mechanism, sasl.username and sasl.password",
    "ssl.keystore.type": "this is the Java client's: write ssl.keystore.location (PKCS#12) or ssl.key.location (PEM)",
    "ssl.truststore.location": "this is the Java client's: write ssl.ca.location, a file of PEM",
    "ssl.truststore.password": "this is the Java client's: write ssl.ca.location, a file of PEM",
    "ssl.truststore.type": "this is the Java client's: write ssl.ca.location, a file of PEM",
}


def check_options(given: Mapping[Any, object]) -> dict[str, Option]:
    """The properties as they were given.

    Raises:
        GraphError: one is penstock's, is a secret written out, or has a value that no property can have. No message
            shows a value.

    >>> check_options({"security.protocol": "SASL_SSL", "socket.timeout.ms": 5000})
    {'security.protocol': 'SASL_SSL', 'socket.timeout.ms': 5000}
    """
    found: dict[str, Option] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            msg = f"options are named by text, such as 'security.protocol'; one of them is named by {name!r}"
            raise GraphError(msg)
        _check_name(name)
        check_option(name, value)
        if not isinstance(value, str | int | float | bool | EnvironmentSecret | FileSecret):
            msg = (
                f"option {name!r} is a {type(value).__name__}: properties are text, numbers, true or false, or the "
                "reference of a secret, so that they can be sent to executors; there are no callbacks"
            )
            raise GraphError(msg)
        found[name] = value
    return found


def _check_name(name: str) -> None:
    if name.startswith("kafka."):
        msg = f"option {name!r}: write it without the prefix, {name.removeprefix('kafka.')!r}"
        raise GraphError(msg)
    if name in _OWNED:
        msg = f"option {name!r} is not set here: {_OWNED[name]}"
        raise GraphError(msg)
