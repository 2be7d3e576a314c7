"""The web server's own settings; address and numbers of processes come from the command line."""

from pathlib import Path

from config import logs, settings

worker_class = "config.webserver.Worker"
# They cost little while nobody uses them. Those above the waiting ones are for calls that wait for
# a connection or for their turn.
threads = settings.WEB_WAITERS + 56
worker_connections = threads + 1_000
timeout = 60
graceful_timeout = 10
# Workers call every few seconds and keep their connection.
keepalive = 65
preload_app = True
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - gunicorn's advice

# What a proxy says is believed by Django alone, and only where the settings say that there is one:
# else a client beside the server could say what address and path it meant.
forwarded_allow_ips = ""

logconfig_dict = logs.configuration("INFO")
logconfig_dict["loggers"] = {
    "gunicorn.error": {"handlers": [], "level": "INFO", "propagate": True},
    # Says again, for every call of every worker, what django-structlog says where it matters.
    "gunicorn.access": {"handlers": [], "level": "WARNING", "propagate": True},
}
