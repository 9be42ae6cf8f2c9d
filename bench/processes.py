"""What processes use, asked from outside: processor time, memory, threads, files, Spark's blocks. Judges nothing."""

from __future__ import annotations

import gc
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEGABYTE = 1024 * 1024


def jvm_of(spark: SparkSession) -> Any:
    """The gateway to the session's JVM."""
    return spark.sparkContext._jvm


def processor_seconds(spark: SparkSession) -> float:
    """Processor time of this process, of the JVM and of its Python workers so far."""
    system: Any = jvm_of(spark).java.lang.management.ManagementFactory.getOperatingSystemMXBean()
    pid = int(jvm_of(spark).java.lang.ProcessHandle.current().pid())
    return time.process_time() + _processor_nanos(spark, system) / 1e9 + _of_children(pid)


def _of_children(pid: int) -> float:
    """Of all processes below one, those that have ended included: their parents have their times."""
    import psutil

    parent = psutil.Process(pid)
    ended = parent.cpu_times()
    total = float(ended.children_user + ended.children_system)
    for child in parent.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def jobs_run(spark: SparkSession) -> int:
    """How many Spark jobs there were so far."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def compilations(spark: SparkSession) -> int:
    """How many classes Spark has generated and compiled so far."""
    metrics = jvm_of(spark).org.apache.spark.metrics.source.CodegenMetrics
    return int(metrics.METRIC_COMPILATION_TIME().getCount())


def _processor_nanos(spark: SparkSession, system: Any) -> int:
    reflect = jvm_of(spark).java.lang.Class.forName("com.sun.management.OperatingSystemMXBean")
    return int(reflect.getMethod("getProcessCpuTime", None).invoke(system, None))


def heap_megabytes_after_gc(spark: SparkSession) -> float:
    """Heap in use after a full collection, which this asks for."""
    jvm = jvm_of(spark)
    for _ in range(2):  # the first frees what the second finds to be free
        jvm.java.lang.System.gc()
        time.sleep(0.5)
    return float(jvm.java.lang.management.ManagementFactory.getMemoryMXBean().getHeapMemoryUsage().getUsed()) / MEGABYTE


def objects_after_gc(spark: SparkSession) -> dict[str, float]:
    """What a full collection leaves: heap, classes and accumulators of the JVM, and objects."""
    from py4j.finalizer import ThreadSafeFinalizer

    gc.collect()
    heap = heap_megabytes_after_gc(spark)
    jvm = jvm_of(spark)
    accumulators = getattr(getattr(jvm, "org.apache.spark.util.AccumulatorContext$"), "MODULE$")
    field = accumulators.getClass().getDeclaredField("originals")
    field.setAccessible(True)
    return {
        "heap_mb": round(heap, 1),
        "classes": int(jvm.java.lang.management.ManagementFactory.getClassLoadingMXBean().getLoadedClassCount()),
        "accumulators": int(field.get(accumulators).size()),
        "java_objects": len(ThreadSafeFinalizer.finalizers),
        "python_objects": len(gc.get_objects()),
    }


def usage(spark: SparkSession, folder: Path) -> dict[str, float]:
    """Memory, threads, open files, blocks of RDDs and files below ``folder``, as of now."""
    jvm = jvm_of(spark)
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    return {
        "python_mb": round(_resident(os.getpid()), 1),
        "python_threads": threading.active_count(),
        "jvm_threads": int(jvm.java.lang.management.ManagementFactory.getThreadMXBean().getThreadCount()),
        "open_files": _open_files(os.getpid()) + _open_files(pid),
        "rdds": int(spark.sparkContext._jsc.getPersistentRDDs().size()),
        "files": sum(len(names) for _, _, names in os.walk(folder)),
    }


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE


def _open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
