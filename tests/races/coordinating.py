"""An instance of the built-in coordinator in a process of its own, to be killed at any moment."""

from __future__ import annotations

import sys

import django

if __name__ == "__main__":
    django.setup()
    from django.db import connection

    connection.settings_dict["NAME"] = sys.argv[1]
    from mesh import recovery
    from workflows import instances, sweeps, tasks

    instances.become(instances.Instance.new())
    tasks.Pulse().start()
    tasks.Ears().start()
    print("up", flush=True)  # noqa: T201  # to the test
    while True:
        for name in sweeps.SWEEPS:
            recovery.run(name)
