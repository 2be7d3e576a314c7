"""The web server's own settings; address and numbers of processes come from the command line."""

from pathlib import Path

from config import logs

worker_class = "gthread"
threads = 8
timeout = 60
graceful_timeout = 10
# Workers call every few seconds and keep their connection.
keepalive = 65
preload_app = True
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - gunicorn's advice

logconfig_dict = logs.configuration("INFO")
logconfig_dict["loggers"] = {
    name: {"handlers": [], "level": "INFO", "propagate": True}
    for name in ("gunicorn.error", "gunicorn.access")
}
