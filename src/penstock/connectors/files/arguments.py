"""What the arguments of ``ps.files.Source`` may be."""

from __future__ import annotations

import codecs
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.connectors.files.listing import is_finished
from penstock.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import StructType

FORMATS: Final = ("csv", "json", "parquet", "text")
WAYS: Final = ("archive", "delete")


SPARKS_ENCODINGS: Final[Mapping[str, str]] = {
    "utf-8": "UTF-8",
    "ascii": "US-ASCII",
    "iso8859-1": "ISO-8859-1",
    "utf-16": "UTF-16",
    "utf-16-be": "UTF-16BE",
    "utf-16-le": "UTF-16LE",
    "utf-32": "UTF-32",
}
"""The encodings that Spark's reader of CSV takes, by Python's names."""


def taken(options: dict[str, object], name: str, otherwise: str) -> str:
    """Take an option of the files out of those of the decoder; case does not count."""
    for found in [each for each in options if each.lower() == name.lower()]:
        return str(options.pop(found))
    return otherwise


def check_multi_line(multi_line: str, format: str) -> bool:
    """Whether records may have several lines.

    Raises:
        GraphError: these files cannot be read so.
    """
    if multi_line.lower() not in ("true", "false"):
        msg = f"Option 'multiLine' is {multi_line!r}. Give True or False."
        raise GraphError(msg)
    if multi_line.lower() == "true" and format != "csv":
        msg = (
            f"Option 'multiLine' has no effect for format {format!r}, only for 'csv'. Leave it out: a record of "
            "JSON is one line."
        )
        raise GraphError(msg)
    return multi_line.lower() == "true"


def check_encoding(encoding: str, format: str, *, multi_line: bool) -> str | None:
    """Python's name of an encoding; ``None`` for UTF-8.

    Raises:
        GraphError: there is no such encoding, or these files cannot be in it.
    """
    if format == "parquet":
        msg = "Option 'encoding' has no effect when parquet is read. Leave it out."
        raise GraphError(msg)
    try:
        with suppress(UnicodeDecodeError):
            b"ab".decode(encoding)
        name = codecs.lookup(encoding).name
    except LookupError as error:
        msg = f"Option 'encoding' is {encoding!r}, which is none. Give a name such as 'cp1252' or 'utf-16'."
        raise GraphError(msg) from error
    if multi_line and name not in SPARKS_ENCODINGS:
        known = ", ".join(SPARKS_ENCODINGS.values())
        msg = f"Option 'encoding' is {encoding!r}, which Spark does not read with multiLine. Give one of {known}."
        raise GraphError(msg)
    return None if name == "utf-8" else name


def check_content(path: str, format: str, schema: str | StructType | None, *, header: str) -> None:
    """Check what is read, and how.

    Raises:
        GraphError: names the argument and the remedy.
    """
    if "://" in path.removeprefix("file://"):
        msg = (
            f"Path {path!r} cannot be watched: it is not on a local or mounted file system. Mount it, or copy its "
            "files to a local directory."
        )
        raise GraphError(msg)
    if format not in FORMATS:
        msg = f"Format {format!r} is not one of {', '.join(FORMATS)}. Give one of these."
        raise GraphError(msg)
    if format in ("csv", "json") and schema is None:
        msg = f"Format {format!r} needs schema=. Give the columns, as in schema='id LONG, user STRING'."
        raise GraphError(msg)
    if format == "text" and schema is not None:
        msg = "Format 'text' has one column, value STRING. Leave schema= out, and parse the value in the pipeline."
        raise GraphError(msg)
    if header not in ("true", "false", "names"):
        msg = f"Option 'header' is {header!r}. Give True (skip the first line), 'names' (find columns by it) or False."
        raise GraphError(msg)
    if header != "false" and format != "csv":
        msg = f"Option 'header' has no effect for format {format!r}, only for 'csv'. Leave it out."
        raise GraphError(msg)


def archive_of(root: str, after_read: str | None, archive: str | os.PathLike[str] | None) -> str:
    """Where archived files go: by default a folder of the directory itself, whose name keeps it from being read.

    Raises:
        GraphError: the arguments do not fit one another, or the files of the archive would be read.
    """
    if after_read is not None and after_read not in WAYS:
        msg = f"after_read is {after_read!r}. Give 'archive' or 'delete', or leave it out: then files stay."
        raise GraphError(msg)
    if archive is None:
        return os.path.join(root, "_archive")
    if after_read != "archive":
        msg = (
            f"archive={os.fspath(archive)!r} has no effect without after_read='archive'. Add it, or leave archive out."
        )
        raise GraphError(msg)
    path = os.path.abspath(os.fspath(archive))
    below = os.path.relpath(path, root).split(os.sep)
    if path == root or (below[0] != ".." and all(is_finished(part) for part in below)):
        msg = (
            f"Archive {path!r} is in directory {root!r}, so its files would be read again. Choose a folder beside the "
            "directory, or one whose name begins with '_' or '.'."
        )
        raise GraphError(msg)
    return path
