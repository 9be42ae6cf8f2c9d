"""A pipeline is killed with -9 and started again; every row of its output is counted. The same as `penstock demo`.

The pipeline itself is `src/penstock/cli/demo_pipeline.py`; with --keep a copy lies beside its input and output.
"""

import sys

from penstock.cli.main import dispatch
from penstock.cli.output import Output

if __name__ == "__main__":
    sys.exit(dispatch(["demo", *sys.argv[1:]], Output()))
