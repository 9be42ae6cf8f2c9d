"""The public surface as a user's editor sees it: read by pyright, never run."""

from __future__ import annotations

import penstock as ps

promise: str | None = ps.__doc__
