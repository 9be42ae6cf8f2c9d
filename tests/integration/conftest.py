"""What the integration tests share: brokers, started when the first test asks for them, and the topics on them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.broker import Broker
from integration.certificates import Authority
from integration.kinesis_server import KinesisServer
from integration.kinesis_streams import server_of
from integration.secured import Secured, secured_broker
from integration.topics import Topics


def pytest_itemcollected(item: pytest.Item) -> None:
    """All that lies in this folder needs more than Python."""
    item.add_marker("integration")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The run's broker. A test may pause, kill and restart it: the next one finds it well."""
    with Broker(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture(scope="session")
def topics(broker: Broker) -> Topics:
    """Makes topics on the run's broker; every test has its own."""
    return Topics(broker.servers)


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A second broker, which asks its clients who they are; for tests of security only."""
    home = tmp_path_factory.mktemp("secured")
    authority = Authority(home / "certificates")
    with secured_broker(home, authority) as started:
        yield Secured(started, Topics(started.servers), authority, authority.issue("worker"))


@pytest.fixture(autouse=True)
def _leaves_the_broker_well(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "broker" in request.fixturenames:
        broker: Broker = request.getfixturevalue("broker")
        broker.resume() if broker.is_running else broker.start()


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, KinesisServer]]:
    """Emulators of the run, each started by the first test that asks for it."""
    started: dict[str, KinesisServer] = {}
    yield started
    for server in started.values():
        server.kill()


@pytest.fixture(params=["kinesis-local", "kinesalite"])
def server(
    request: pytest.FixtureRequest, servers: dict[str, KinesisServer], tmp_path_factory: pytest.TempPathFactory
) -> KinesisServer:
    """Each of the emulators of Kinesis in turn."""
    return server_of(request.param, servers, tmp_path_factory)


@pytest.fixture
def lineage_server(servers: dict[str, KinesisServer], tmp_path_factory: pytest.TempPathFactory) -> KinesisServer:
    """The emulator that is right about the lineage of shards."""
    return server_of("kinesis-local", servers, tmp_path_factory)
