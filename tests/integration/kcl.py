"""A KCL application: the real Kinesis Client Library for Java in a JVM of its own, with record processors in Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from py4j.java_gateway import CallbackServerParameters, JavaGateway

from integration.broker_jars import jars_folder, java

JARS = Path(__file__).with_name("kcl_jars.txt")
OPTIONS = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Daws.cborEnabled=false"]
STOP_SECONDS = 60


@dataclass
class Processed:
    """What all record processors of an application have got, in order, and the shards that they read to their end."""

    texts: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)


class KclApplication:
    """Consumes a stream until it is stopped, and checkpoints each call. A shard without a lease would begin at LATEST.

    Args:
        home: for the log.
        stream: its name.
        table: the lease table, which is the application's name.
        kinesis: where Kinesis answers.
        dynamo: where DynamoDB answers.
    """

    def __init__(self, home: Path, stream: str, table: str, *, kinesis: str, dynamo: str) -> None:
        self.processed = Processed()
        with (home / "kcl.log").open("a", encoding="utf-8") as log:
            self._gateway = JavaGateway.launch_gateway(
                jarpath=str(_py4j_jar()),
                classpath=f"{jars_folder(JARS, 'kcl')}/*",
                javaopts=OPTIONS,
                java_path=java(),
                die_on_exit=True,
                redirect_stdout=log,
                redirect_stderr=log,
                daemonize_redirect=True,
            )
            self._gateway.start_callback_server(CallbackServerParameters(port=0, daemonize=True))
            server = self._gateway.java_gateway_server
            port = self._gateway.get_callback_server().get_listening_port()
            server.resetCallbackClient(server.getCallbackClient().getAddress(), port)
            self._scheduler = self._schedule(stream, table, kinesis, dynamo)
            self._gateway.jvm.java.lang.Thread(self._scheduler).start()

    def _schedule(self, stream: str, table: str, kinesis: str, dynamo: str) -> Any:
        amazon = self._gateway.jvm.software.amazon
        kcl = amazon.kinesis
        clients = amazon.awssdk.services
        self._factory = _Factory(self.processed, self._gateway.jvm)
        client = self._client(clients.kinesis.KinesisAsyncClient, kinesis)
        configs = kcl.common.ConfigsBuilder(
            stream,
            table,
            client,
            self._client(clients.dynamodb.DynamoDbAsyncClient, dynamo),
            self._client(clients.cloudwatch.CloudWatchAsyncClient, dynamo),
            "kcl-worker",
            self._factory,
        )
        latest = kcl.common.InitialPositionInStreamExtended.newInitialPosition(
            kcl.common.InitialPositionInStream.LATEST
        )
        tracker = kcl.processor.SingleStreamTracker(stream, latest)
        polling = kcl.retrieval.polling.PollingConfig(stream, client)
        return kcl.coordinator.Scheduler(
            configs.checkpointConfig(),
            configs.coordinatorConfig().parentShardPollIntervalMillis(500),
            configs.leaseManagementConfig().failoverTimeMillis(2_000).shardSyncIntervalMillis(1_000),
            configs.lifecycleConfig(),
            configs.metricsConfig().metricsFactory(kcl.metrics.NullMetricsFactory()),
            configs.processorConfig(),
            configs.retrievalConfig().streamTracker(tracker).retrievalSpecificConfig(polling),
        )

    def _client(self, kind: Any, url: str) -> Any:
        aws = self._gateway.jvm.software.amazon.awssdk
        nobody = aws.auth.credentials.AwsBasicCredentials.create("000000000000", "none")
        http = aws.http.nio.netty.NettyNioAsyncHttpClient.builder().protocol(aws.http.Protocol.HTTP1_1)
        return (
            kind.builder()
            .endpointOverride(self._gateway.jvm.java.net.URI.create(url))
            .region(aws.regions.Region.of("us-east-1"))
            .credentialsProvider(aws.auth.credentials.StaticCredentialsProvider.create(nobody))
            .httpClient(http.buildWithDefaults(aws.utils.AttributeMap.empty()))  # py4j finds no default methods
            .build()
        )

    def stop(self) -> None:
        """Stop it in order: each processor checkpoints what it has got."""
        seconds = self._gateway.jvm.java.util.concurrent.TimeUnit.SECONDS
        self._scheduler.startGracefulShutdown().get(STOP_SECONDS, seconds)

    def close(self) -> None:
        """End its JVM."""
        self._gateway.shutdown()


class _Factory:
    def __init__(self, processed: Processed, jvm: Any) -> None:
        self._processed = processed
        self._jvm = jvm

    def shardRecordProcessor(self, *_: object) -> _Processor:
        return _Processor(self._processed, self._jvm)

    class Java:
        implements = ("software.amazon.kinesis.processor.ShardRecordProcessorFactory",)


class _Processor:
    """Notes the records of one shard. Its methods are those of the KCL's interface."""

    def __init__(self, processed: Processed, jvm: Any) -> None:
        self._processed = processed
        self._text = jvm.java.nio.charset.StandardCharsets.UTF_8
        self._shard = ""

    def initialize(self, given: Any) -> None:
        self._shard = given.shardId()

    def processRecords(self, given: Any) -> None:
        for record in given.records():
            self._processed.texts.append(self._text.decode(record.data()).toString())
        given.checkpointer().checkpoint()

    def leaseLost(self, _: object) -> None:
        pass

    def shardEnded(self, given: Any) -> None:
        given.checkpointer().checkpoint()
        self._processed.ended.append(self._shard)

    def shutdownRequested(self, given: Any) -> None:
        given.checkpointer().checkpoint()

    class Java:
        implements = ("software.amazon.kinesis.processor.ShardRecordProcessor",)


def _py4j_jar() -> Path:
    """The one that PySpark brings."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    (jar,) = (Path(spec.origin).parent / "jars").glob("py4j-*.jar")
    return jar
