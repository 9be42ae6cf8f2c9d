"""What Spark says of files that it could not read, as errors with the file, the cause and the remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from penstock.connectors.files.listing import file_unreadable
from penstock.errors import DecodeError

if TYPE_CHECKING:
    from penstock.errors import ConnectorError

_FAILED_READ: Final = re.compile(r"\[FAILED_READ_FILE\.(?:NO_HINT|FILE_NOT_EXIST)\] .*? file:/*(/\S*?)\.?(?=\s|$)")
_CAUSE: Final = re.compile(r"^\s*Caused by: (.*)$", re.MULTILINE)
_DENIED: Final = re.compile(r"\(Permission denied\)|AccessControlException")
_DAMAGED: Final = re.compile(
    r"EOFException|end of stream|ZipException|DataFormatException|ParquetDecodingException|gzip|bzip2|zstd|snappy|lz4|"
    r"\bCRC\b|corrupt|incorrect (?:header|data) check|invalid (?:block|stored|distance|code|literal|bit)",
    re.IGNORECASE,
)
"""What decompressors and decoders of Java say of content that will never be right."""


def explain(exception: BaseException) -> ConnectorError | None:
    """The error of a Spark job that could not read a file which is there; ``None`` for other failures."""
    text = str(exception)
    found = _FAILED_READ.search(text)
    if found is None:
        return None
    path, causes = unquote(found[1]), _CAUSE.findall(text)
    cause = causes[-1] if causes else text.splitlines()[0]
    if _DENIED.search(text):
        return file_unreadable(path, "Permission denied")
    if found[0].startswith("[FAILED_READ_FILE.FILE_NOT_EXIST]"):
        return None
    if any(_DAMAGED.search(each) for each in causes):
        msg = (
            f"File {path!r} is damaged or was not written to its end ({cause}). To go on, move it away, or replace "
            "it by a whole one, and start the job again. Files must arrive whole: write them under a name that begins "
            "with '_' or '.' or ends with '.tmp', then rename."
        )
        return DecodeError(msg)
    return file_unreadable(path, cause)
