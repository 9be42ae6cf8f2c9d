"""moto's DynamoDB: started on a free port, killed in the end. It holds its tables in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from integration.broker_settings import HOST
from integration.ports import free_ports
from penstock.clock import SystemClock, sleep

START_SECONDS = 60


class DynamoServer:
    """A server that dies with whoever started it. It forgets its tables when it is killed."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._port = free_ports(1)[0]
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def client(self, **options: Any) -> Any:
        return boto3.session.Session().client(
            "dynamodb",
            region_name="us-east-1",
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            config=Config(connect_timeout=2, read_timeout=5, retries={"total_max_attempts": 1}, **options),
        )

    def start(self) -> None:
        guard = [sys.executable, str(Path(__file__).with_name("guard.py"))]
        server = [sys.executable, str(Path(__file__).with_name("moto_dynamo.py")), HOST, str(self._port)]
        with (self._home / "dynamo.log").open("a", encoding="utf-8") as log:
            self._guard = subprocess.Popen(
                [*guard, *server],
                cwd=self._home,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        client, clock = self.client(), SystemClock()
        until = clock.now() + START_SECONDS * 1_000_000
        while True:
            # Another program may have the port: then ours has ended, and the answer is not ours.
            assert self._guard.poll() is None, (self._home / "dynamo.log").read_text()
            try:
                client.list_tables()
            except (BotoCoreError, ClientError):
                assert clock.now() < until, (self._home / "dynamo.log").read_text()
                sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """Kill it, and return when it is gone."""
        assert self._guard is not None
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()  # then the guard kills it
        self._guard.wait()
        self._guard.stdout.close()


@contextmanager
def dynamo_server(home: Path) -> Iterator[DynamoServer]:
    """A server for as long as the block lasts."""
    server = DynamoServer(home)
    server.start()
    try:
        yield server
    finally:
        server.kill()
