"""A server of moto's DynamoDB on a host and a port, which are its arguments.

Requests are answered one after the other: moto looks at a condition and writes in two steps.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

if __name__ == "__main__":
    moto, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def answer(environment: Any, start_response: Any) -> list[bytes]:
        with one_at_a_time:
            return list(moto(environment, start_response))

    run_simple(sys.argv[1], int(sys.argv[2]), answer, threaded=True)
