"""Local files get their modes from the JVM itself, and not from a process for each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger("penstock")

# Hadoop sets the mode of each local file and folder that it makes. Its native library could do so by itself, but
# PySpark from a package registry comes without it: then Hadoop starts ``chmod``, four times for a file of a layer in a
# folder of its own. That took 17 ms a file, and the file 3 ms (design record 0042).

_RAW: Final = "org.apache.hadoop.fs.RawLocalFileSystem"
_REPLACED: Final = ("org.apache.hadoop.fs.LocalFileSystem", "org.apache.hadoop.hive.ql.io.ProxyLocalFileSystem")
"""What Hadoop has for local files without a setting; the latter where Hive is on the class path, which adds nothing."""
_NAME: Final = "PenstockLocalFiles"
_SOURCE: Final = f"""
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;

public class {_NAME} extends {_RAW} {{
  public void setPermission(
      org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission)
      throws java.io.IOException {{
    Path file = pathToFile(path).toPath();
    int mode = ((Integer) Files.getAttribute(file, "unix:mode")).intValue();
    if ((mode & 07777) == permission.toShort()) {{
      return;
    }}
    if ((mode & 07000) != 0 || permission.getStickyBit()) {{ // chmod treats files and folders differently
      super.setPermission(path, permission);
    }} else {{
      Files.setPosixFilePermissions(file, PosixFilePermissions.fromString(permission.toString()));
    }}
  }}
}}
"""
"""Hadoop's own class but for one method, which has the same effect on systems with POSIX modes."""


def set_modes_without_processes(context: SparkContext) -> None:
    """Have Hadoop's file system of local files set modes by itself, in the JVM of a context that penstock made.

    Executors of a cluster have JVMs of their own, and go on as before. So does everything if this Spark does not allow
    it: then the log says why, once.
    """
    inner: Any = context
    try:
        _replace(inner._jvm, inner._gateway, inner._jsc.hadoopConfiguration())  # noqa: SLF001 - there is no public way
    except Exception as error:
        log.info("Hadoop starts a process for each local file that it makes: %s", error)


def _replace(jvm: Any, gateway: Any, configuration: Any) -> None:
    has_own = getattr(jvm, "org.apache.hadoop.io.nativeio.NativeIO").isAvailable()
    if has_own or getattr(jvm, "org.apache.hadoop.util.Shell").WINDOWS:
        return
    everywhere = getattr(jvm, "java.net.URI").create("file:///")
    file_system = getattr(jvm, "org.apache.hadoop.fs.FileSystem")
    found = file_system.get(everywhere, configuration)
    raw = found.getRawFileSystem()
    if found.getClass().getName() not in _REPLACED or raw.getClass().getName() != _RAW:
        return  # it is the user's, or was replaced for a context before
    compiler = getattr(jvm, "org.codehaus.janino.SimpleCompiler")()
    compiler.setParentClassLoader(raw.getClass().getClassLoader())
    compiler.cook(_SOURCE)
    made = compiler.getClassLoader().loadClass(_NAME).getConstructors()[0].newInstance(_objects(jvm, gateway))
    local = getattr(jvm, "org.apache.hadoop.fs.LocalFileSystem")(made)
    local.initialize(everywhere, configuration)
    # Hadoop keeps one file system for all, and tells nobody but tests how to replace it.
    declared = getattr(jvm, "java.lang.Class").forName("org.apache.hadoop.fs.FileSystem").getDeclaredMethods()
    replace = next(method for method in declared if method.getName() == "addFileSystemForTesting")
    replace.setAccessible(True)
    replace.invoke(None, _objects(jvm, gateway, everywhere, configuration, local))


def _objects(jvm: Any, gateway: Any, *items: Any) -> Any:
    """An array of objects of the JVM."""
    array = gateway.new_array(getattr(jvm, "java.lang.Object"), len(items))
    for index, item in enumerate(items):
        array[index] = item
    return array
