"""Makes the archive of Spark's classes that the JVMs of a test run map instead of loading and verifying each class.

`python tools/spark_classes.py ARCHIVE` makes it as `penstock doctor --warm` does, but under a name that `tools/test.sh`
knows: with it a session costs half of the processor's time, and tests start a hundred, most of them not by penstock.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from penstock.admin.warming import make_archive
from penstock.spark.class_archive import class_archive


def main(target: Path) -> int:
    """Write the archive, whole or not at all."""
    archive = class_archive(os.environ | {"XDG_CACHE_HOME": str(target.parent)}, {})
    if isinstance(archive, str):
        sys.stderr.write(f"{archive}\n")
        return 1
    made = make_archive(archive)
    if made is None:
        return 1
    made.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
