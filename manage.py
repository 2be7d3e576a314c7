#!/usr/bin/env python
"""Django's command line, with the product's settings. What goes wrong outside is one line."""

import os
import sys


def main() -> None:
    if sys.version_info < (3, 11):
        sys.exit("fencepost: Python 3.11 or newer is needed, this is " + sys.version.split()[0])
    try:
        from django.core.management import execute_from_command_line
        from django.db import OperationalError, ProgrammingError
    except ImportError:
        sys.exit("fencepost: Django is not installed for this Python: run make run, or use .venv")
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        execute_from_command_line(sys.argv)
    except (OperationalError, ProgrammingError) as error:
        from config.databases import explain

        sentence = explain(error)
        if sentence is None:
            raise
        sys.exit(f"fencepost: {sentence}")


if __name__ == "__main__":
    main()
