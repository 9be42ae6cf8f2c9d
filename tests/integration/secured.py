"""A broker that asks its clients who they are: TLS, mutual TLS and SASL, each on a listener of its own, and rules.

    def test_…(secured):
        properties = secured.client("SASL_TLS", user="alice", mechanism="SCRAM-SHA-512")
        topic = secured.topics.create("secret")        # by the open listener, which may do anything
        secured.forbid("alice", topic)

It costs a second broker, so it is started by the first test that asks for it, and only tests of security should.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from integration.broker import Broker
from integration.broker_settings import HOST, OPEN, Listener
from integration.certificates import Authority, Certificate
from integration.topics import PATIENCE, Topics

LISTENERS = ("TLS", "MTLS", "SASL", "SASL_TLS")
"""Server known to the client; client known to the server as well; users over plain TCP; users over TLS."""

MECHANISMS = ("PLAIN", "SCRAM-SHA-512")

PASSWORDS = {"alice": "alices-password-7f3a", "bob": "bobs-password-91cc"}
"""Of the users whom both mechanisms know."""

RULES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
    "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
}


@dataclass(frozen=True, slots=True)
class Secured:
    """The broker, and what its clients need.

    Attributes:
        broker: its open listener is the first.
        topics: as somebody sees them who may do anything.
        authority: the one that the broker trusts.
        worker: the certificate of a client, ``User:worker`` in rules.
    """

    broker: Broker
    topics: Topics
    authority: Authority
    worker: Certificate

    def client(self, listener: str, *, user: str = "alice", mechanism: str = "PLAIN") -> dict[str, str | int]:
        """What a client with every right to come in sets, as properties of the standard client; its secrets are plain.

        Args:
            listener: one of ``LISTENERS``.
            user: one of ``PASSWORDS``; only SASL asks for it.
            mechanism: one of ``MECHANISMS``; only SASL asks for it.
        """
        found: dict[str, str | int] = {"bootstrap.servers": self.broker.address(listener)}
        if listener in {"TLS", "MTLS", "SASL_TLS"}:
            found |= {"security.protocol": "SSL", "ssl.ca.location": str(self.authority.certificate)}
        if listener == "MTLS":
            found |= {
                "ssl.certificate.location": str(self.worker.chain),
                "ssl.key.location": str(self.worker.locked_key),
                "ssl.key.password": self.worker.password,
            }
        if listener.startswith("SASL"):
            found |= {
                "security.protocol": "SASL_SSL" if listener == "SASL_TLS" else "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": PASSWORDS[user],
            }
        return found

    def forbid(self, user: str, topic: str) -> None:
        """From now on the user may do nothing with the topic."""
        rule = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation.ALL,
            AclPermissionType.DENY,
        )
        for future in self.topics.admin.create_acls([rule]).values():
            future.result(PATIENCE)


def secured_broker(home: Path, authority: Authority) -> Broker:
    """The broker, not yet started."""
    return Broker(home, listeners=_listeners(authority), overrides=RULES, scram=PASSWORDS)


def _listeners(authority: Authority) -> tuple[Listener, ...]:
    tls = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("broker", HOST, "localhost").store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    known = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    sasl = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "plain.sasl.jaas.config": f"{plain} {known};",
        "scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    }
    return (
        OPEN,
        Listener("TLS", "SSL", tls),
        Listener("MTLS", "SSL", {**tls, "ssl.client.auth": "required"}),
        Listener("SASL", "SASL_PLAINTEXT", sasl),
        Listener("SASL_TLS", "SASL_SSL", {**tls, **sasl}),
    )
