"""A real Kafka broker of one node, in a process of its own, that tests, benches and demos start and maltreat.

A test takes the run's broker and a topic of its own::

    def test_…(broker, topics):
        topic = topics.create("orders", partitions=4)
        topics.produce(topic, [Record(b"v", key=b"k", partition=0)])
        ps.kafka.Source(servers=broker.servers, topics=[topic])

Whoever is no test starts one in an empty folder (``tests`` must be on the path)::

    from integration.broker import Broker
    from integration.topics import Record, Topics

    with Broker(folder) as broker:                     # started when ``with`` begins, about 5 s; killed when it ends
        topics = Topics(broker.servers)
        broker.pause(); broker.resume()                # SIGSTOP: connections stay, nothing answers
        broker.kill(); broker.start()                  # SIGKILL, and back on the same ports with the same data
        broker.restart()                               # an orderly stop, and back

For figures: ``Broker(folder, heap_megabytes=512, jvm=FAST)``. What it says stands in ``broker.log``. Its ports are open
on the loopback interface only. It dies with whoever started it, also if that was killed outright (see ``guard``).
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, final

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from crash.waiting import holds_within, until
from integration.broker_jars import jars_folder, java
from integration.broker_settings import CONTROLLER, HOST, LOGGING, OPEN, Listener, server_properties
from integration.ports import free_ports

LIGHT: Final = ("-XX:-UsePerfData", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A JVM that is up soon and compiles little: for tests."""

FAST: Final = ("-XX:-UsePerfData", "-XX:+UseG1GC")
"""A JVM as brokers run on: for figures."""

START_SECONDS, STOP_SECONDS, ATTEMPTS = 120, 60, 5

QUIET = {"log_level": 0}
"""Clients that outlive a broker complain on stderr otherwise."""


class BrokerFailed(Exception):
    """The broker did not come up; the message ends with its last words."""


@final
class Broker:
    """One broker in one folder.

    Args:
        home: where its settings, data and log are; made if absent. Data that are there are taken up again.
        listeners: where clients come in; ``servers`` is the first of them.
        heap_megabytes: of its JVM.
        jvm: further options of its JVM.
        overrides: settings of ``server.properties``.
        scram: names and passwords that SCRAM-SHA-512 knows from the beginning.
    """

    def __init__(
        self,
        home: Path,
        *,
        listeners: Sequence[Listener] = (OPEN,),
        heap_megabytes: int = 256,
        jvm: Sequence[str] = LIGHT,
        overrides: Mapping[str, str] | None = None,
        scram: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home.absolute()
        self.listeners = tuple(listeners)
        self.log = self.home / "broker.log"
        self._java = [java(), f"-Xmx{heap_megabytes}m", f"-Xms{heap_megabytes}m", *jvm]
        self._overrides = dict(overrides or {})
        self._scram = dict(scram or {})
        self._ports: dict[str, int] = {}
        self._guard: subprocess.Popen[str] | None = None
        self._pid = 0
        self._said_before = 0

    # ----------------------------------------------------------------------------------------------------- where it is

    @property
    def servers(self) -> str:
        """What clients call ``bootstrap.servers``; stays the same for the life of this object."""
        return self.address(self.listeners[0].name)

    def address(self, listener: str) -> str:
        """``host:port`` of a listener."""
        return f"{HOST}:{self._ports[listener]}"

    @property
    def pid(self) -> int:
        """The process id of its JVM, while it runs."""
        return self._pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process; a paused one counts."""
        return self._guard is not None and self._guard.poll() is None

    def tail(self) -> str:
        """Its last words."""
        return "\n".join(self.log.read_text(encoding="utf-8").splitlines()[-20:]) if self.log.exists() else ""

    # ------------------------------------------------------------------------------------------------- begin and end

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Start it and wait until it answers; the second time on the same ports, with the same data.

        Raises:
            JarsUnavailable: its jars cannot be had.
            BrokerFailed: it ended by itself or does not answer.
        """
        if self.is_running:
            return
        self._wait()  # it may have ended by itself
        for _ in range(ATTEMPTS):
            is_first = not self._ports
            if is_first:
                self._settle()
            if self._comes_up():
                return
            if is_first:
                self._ports = {}  # somebody was faster: others
        msg = f"the broker's ports were taken {ATTEMPTS} times:\n{self.tail()}"
        raise BrokerFailed(msg)

    def stop(self) -> None:
        """Ask it to end (SIGTERM) and wait until it has; nothing if it does not run."""
        if self.is_running:
            self._send(signal.SIGTERM)
            self._send(signal.SIGCONT)
        self._wait()

    def kill(self) -> None:
        """SIGKILL, paused or not; nothing if it does not run."""
        if self.is_running:
            self._send(signal.SIGKILL)
        self._wait()

    def restart(self) -> None:
        """An orderly stop, if it runs, and a start on the same ports with the same data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open, and nothing is answered."""
        self._send(signal.SIGSTOP)
        until(START_SECONDS, "the broker's process stands still", self._stands_still, self.tail)

    def resume(self) -> None:
        """SIGCONT, and wait until it answers again."""
        self._send(signal.SIGCONT)
        until(START_SECONDS, "the broker answers", self._answers, self.tail)

    # ------------------------------------------------------------------------------------------------------ the process

    def _stands_still(self) -> bool:
        """A signal takes its time; one that has ended answers nothing either."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._pid).status() in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}
        return True

    @property
    def _data(self) -> Path:
        return self.home / "data"

    def _settle(self) -> None:
        """Choose ports, write its settings, and format its data where there are none."""
        names = [each.name for each in self.listeners] + [CONTROLLER]
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        for folder in (self.home, self.home / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        (self.home / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
        text = server_properties(self._data, self._ports, self.listeners, self._overrides)
        (self.home / "server.properties").write_text(text, encoding="utf-8")
        if not self._data.exists():
            self._format()

    def _format(self) -> None:
        cluster = urlsafe_b64encode(b"\0" + os.urandom(15)).decode().rstrip("=")  # begins with A: no option does
        users = [f"SCRAM-SHA-512=[name={name},password={secret}]" for name, secret in self._scram.items()]
        words = ["format", "-t", cluster, "-c", str(self.home / "server.properties")]
        words += [word for user in users for word in ("--add-scram", user)]
        tool = self._command("kafka.tools.StorageTool", *words)
        done = subprocess.run(tool, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            shutil.rmtree(self._data, ignore_errors=True)
            msg = f"the broker's storage was not formatted:\n{done.stdout}{done.stderr}"
            raise BrokerFailed(msg)

    def _command(self, main: str, *arguments: str) -> list[str]:
        options = [
            f"-Djava.io.tmpdir={self.home / 'tmp'}",
            f"-Dlog4j2.configurationFile={self.home / 'log4j2.properties'}",
        ]
        return [*self._java, *options, "-cp", f"{jars_folder()}/*", main, *arguments]

    def _comes_up(self) -> bool:
        """Whether it answers; false if a port of it was taken."""
        self._launch()
        holds_within(START_SECONDS, lambda: not self.is_running or self._answers())
        if self.is_running and self._answers():
            return True
        self.kill()
        if "java.net.BindException" in self._said_since_start():
            return False
        msg = f"the broker did not come up:\n{self.tail()}"
        raise BrokerFailed(msg)

    def _said_since_start(self) -> str:
        with self.log.open(encoding="utf-8") as log:
            log.seek(self._said_before)
            return log.read()

    def _launch(self) -> None:
        guard = [sys.executable, str(Path(__file__).with_name("guard.py"))]
        with self.log.open("a", encoding="utf-8") as log:
            self._said_before = log.tell()
            self._guard = subprocess.Popen(
                [*guard, *self._command("kafka.Kafka", str(self.home / "server.properties"))],
                cwd=self.home,
                env=os.environ | {"LC_ALL": "C"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )
        assert self._guard.stdout is not None
        self._pid = int(self._guard.stdout.readline())

    def _answers(self) -> bool:
        """Whether this broker answers, not another that has the port."""
        try:
            with socket.create_connection((HOST, self._ports[self.listeners[0].name]), timeout=1):
                pass
            admin = AdminClient({"bootstrap.servers": self.servers, **QUIET})
            found = admin.list_topics(timeout=5)
            return bool(found.brokers) and f"cluster.id={found.cluster_id}" in self._identity()
        except (OSError, KafkaException):
            return False

    def _identity(self) -> list[str]:
        return (self._data / "meta.properties").read_text(encoding="utf-8").splitlines()

    def _send(self, number: signal.Signals) -> None:
        if self.is_running:
            with suppress(ProcessLookupError):  # it ended this moment
                os.kill(self._pid, number)

    def _wait(self) -> None:
        if self._guard is None:
            return
        try:
            self._guard.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._send(signal.SIGKILL)
            self._guard.wait()
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                pipe.close()
        self._guard, self._pid = None, 0
