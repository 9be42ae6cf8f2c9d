"""The only place that spells a path below a job's directory.

::

    log/00000000000000000042.json                write-once entries
    state/<uid>/<generation>/…                   layers
    staged/<uid>/<generation>/…                  output waiting for its checkpoint
    wal/<uid>/<generation>/<number>.block        received blocks, the last of them a seal
    wal/<uid>/<generation>/<first>-<last>.blocks several received blocks that were small
    wal/<uid>/<generation>/<number>.keys         idempotency keys of requests whose blocks may be gone
    control/<request>.request.json, .answer.json
    control/report.json                          the status file, replaced again and again
    control/claim.json                           a copy of the owner's claim, which the log trims
"""

from __future__ import annotations

import re
from typing import Final

from penstock.handles import BlockId, EntryNumber, Generation

LOG: Final = "log"
STATE: Final = "state"
STAGED: Final = "staged"
WAL: Final = "wal"
CONTROL: Final = "control"
REPORT: Final = f"{CONTROL}/report.json"
"""The status file. Nothing is decided by it, and no request can have its name."""
CLAIM: Final = f"{CONTROL}/claim.json"
"""A copy of the newest claim's entry, for as long as its owner may live. No request can have its name."""
_ENTRY = re.compile(r"log/(\d{20})\.json")
_BLOCK = re.compile(r"wal/([^/]+)/(\d{1,20})/(\d{20})\.block")
_MERGED = re.compile(r"wal/([^/]+)/(\d{1,20})/(\d{20})-(\d{20})\.blocks")
_KEY_FILE = re.compile(r"wal/([^/]+)/(\d{1,20})/(\d{20})\.keys")
_CONTROL = re.compile(r"control/([A-Za-z0-9-]{8,64})\.(request|answer)\.json")
_GENERATION = re.compile(r"(?:(?:state|staged)/[^/]+|/.*/\.penstock/[^/]+/[^/]+)/(\d{1,20})/.+")
_OUR_NAME = re.compile(r"[._]?penstock(?:[._-].*)?")


def entry(number: EntryNumber) -> str:
    """The path of an entry of the log.

    >>> entry(EntryNumber(42))
    'log/00000000000000000042.json'
    """
    return f"{LOG}/{number:020d}.json"


def entry_number(path: str) -> EntryNumber | None:
    """The number of the entry at ``path``, or ``None`` if it is not the path of an entry.

    >>> entry_number("log/00000000000000000042.json")
    42
    >>> entry_number("log/42.json")
    """
    match = _ENTRY.fullmatch(path)
    return EntryNumber(int(match[1])) if match else None


def state_folder(uid: str, generation: Generation) -> str:
    """The folder of a step's layers that belongs to one generation alone."""
    return f"{STATE}/{uid}/{generation}"


def layer_folder(path: str) -> str | None:
    """The folder of the layer that a file of state belongs to; ``None`` for any other file.

    >>> layer_folder("state/totals/3/g3-000001/0000/part-0.parquet"), layer_folder("staged/out/3/7/part-0.json")
    ('state/totals/3/g3-000001', None)
    """
    folders = path.split("/")
    return "/".join(folders[:4]) if folders[0] == STATE and len(folders) > 4 else None  # noqa: PLR2004


def staged_folder(uid: str, generation: Generation) -> str:
    """The folder of a sink's staged output that belongs to one generation alone."""
    return f"{STAGED}/{uid}/{generation}"


def wal_folder(uid: str, generation: Generation) -> str:
    """The folder of a receiver's blocks that belongs to one generation alone."""
    return f"{WAL}/{uid}/{generation}"


def block(uid: str, block: BlockId) -> str:
    """The path of a received block, or of the seal that has its number.

    >>> block("socket", BlockId(Generation(7), 3))
    'wal/socket/7/00000000000000000003.block'
    """
    return f"{wal_folder(uid, block.generation)}/{block.number:020d}.block"


def block_id(path: str) -> BlockId | None:
    """The block at ``path``, or ``None`` if it is not the path of one.

    >>> block_id("wal/socket/7/00000000000000000003.block")
    BlockId(generation=7, number=3)
    >>> block_id("wal/socket/7/3.block")
    """
    match = _BLOCK.fullmatch(path)
    return BlockId(Generation(int(match[2])), int(match[3])) if match else None


def merged_blocks(uid: str, first: BlockId, last: BlockId) -> str:
    """The path of a file with the blocks from ``first`` to ``last`` of one generation.

    >>> merged_blocks("socket", BlockId(Generation(7), 3), BlockId(Generation(7), 258))
    'wal/socket/7/00000000000000000003-00000000000000000258.blocks'
    """
    return f"{wal_folder(uid, first.generation)}/{first.number:020d}-{last.number:020d}.blocks"


def merged_ids(path: str) -> tuple[BlockId, BlockId] | None:
    """The first and the last block in the merged file at ``path``, or ``None`` if it is not the path of one."""
    match = _MERGED.fullmatch(path)
    if match is None or int(match[3]) >= int(match[4]):
        return None
    generation = Generation(int(match[2]))
    return BlockId(generation, int(match[3])), BlockId(generation, int(match[4]))


def key_file(uid: str, file: BlockId) -> str:
    """The path of a file of idempotency keys.

    >>> key_file("hook", BlockId(Generation(7), 3))
    'wal/hook/7/00000000000000000003.keys'
    """
    return f"{wal_folder(uid, file.generation)}/{file.number:020d}.keys"


def key_file_id(path: str) -> BlockId | None:
    """The generation and number of the file of keys at ``path``, or ``None`` if it is not the path of one."""
    match = _KEY_FILE.fullmatch(path)
    return BlockId(Generation(int(match[2])), int(match[3])) if match else None


def request(identity: str) -> str:
    """The path of a request to a running job."""
    return f"{CONTROL}/{identity}.request.json"


def answer(identity: str) -> str:
    """The path of the answer to a request."""
    return f"{CONTROL}/{identity}.answer.json"


def control_id(path: str) -> tuple[str, bool] | None:
    """The request id of a file below ``control/``, and whether it is the answer; ``None`` for any other file.

    >>> control_id("control/0b5c9a1e77d04f7f.answer.json")
    ('0b5c9a1e77d04f7f', True)
    >>> control_id("control/.0b5c9a1e77d04f7f.request.json.part")
    """
    match = _CONTROL.fullmatch(path)
    return (match[1], match[2] == "answer") if match else None


def generation_of(path: str) -> Generation | None:
    """The generation in whose folder a layer or a staged file lies; ``None`` for other files and write-ahead blocks.

    Next to a sink's target, files are staged in ``.penstock/<log id>/<uid>/<generation>/``.

    >>> generation_of("state/totals/7/layer-1/part-0.parquet")
    7
    >>> generation_of("wal/socket/7/0") is None
    True
    """
    match = _GENERATION.fullmatch(path)
    return Generation(int(match[1])) if match else None


def is_ours(path: str) -> bool:
    """Whether a file of this name can be condemned: its folder is penstock's, and it is no write-ahead block.

    Outside the job's directory a folder or a file must have penstock's prefix. So a table's data files are safe,
    although a committable may name them.

    >>> is_ours("state/totals/7/layer-1/part-0.parquet"), is_ours("wal/socket/7/0"), is_ours("log/42.json")
    (True, False, False)
    >>> is_ours("/out/_penstock/7/part-0.json"), is_ours("/lake/table/part-0.parquet")
    (True, False)
    """
    parts = path.split("/")
    if ".." in parts:
        return False
    if path.startswith("/") or "://" in path:
        return any(_OUR_NAME.fullmatch(part) for part in parts)
    return generation_of(path) is not None
