"""What the arguments of ``ps.files.Source`` may be."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from penstock.connectors.files.listing import is_finished
from penstock.errors import GraphError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS: Final = ("csv", "json", "parquet", "text")
WAYS: Final = ("archive", "delete")


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
