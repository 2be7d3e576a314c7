"""All settings, from the environment. Every name is documented in `.env.example`.

Without DATABASE_URL this is development: the database and the broker are those that `up` runs in
the data folder, keys are made there. With DATABASE_URL it is production: keys must be given.
"""

import os
import secrets
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import environ

from config import logs
from config.runfile import RunFile
from mesh.admin.theme import UNFOLD as UNFOLD
from mesh.api import settings as api


def refuse(problem: str) -> NoReturn:
    """A setting that cannot work ends the process with one line, never with a traceback."""
    sys.exit(f"fencepost: {problem}")


BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.FileAwareEnv()
environ.Env.read_env(BASE_DIR / os.environ.get("FENCEPOST_ENV_FILE", ".env"))


def number(name: str, default: float, *, least: float = 0, most: float = 2**31 - 1) -> float:
    """A number from the environment, whole where its default is."""
    kind = type(default)
    try:
        value = kind(env(name, default=default))
    except ValueError:
        refuse(f"{name} must be a {'whole number' if kind is int else 'number'}")
    if not least <= value <= most:
        refuse(f"{name} must be from {least:g} to {most:g}")
    return value


DATABASE_URL = env("DATABASE_URL", default="")
PRODUCTION = bool(DATABASE_URL)
DATA_DIR = BASE_DIR / env("FENCEPOST_DATA_DIR", default=".data")
RUN = RunFile(DATA_DIR).read()

# --- Keys ----------------------------------------------------------------------------------------

DEVELOPMENT_KEY_FILE = DATA_DIR / "secret_key"
SECRET_KEY = env("SECRET_KEY", default="")
if not SECRET_KEY and PRODUCTION:
    refuse("SECRET_KEY is required when DATABASE_URL is set: give a long random text")
if not SECRET_KEY:
    try:
        SECRET_KEY = DEVELOPMENT_KEY_FILE.read_text().strip()
    except OSError:
        SECRET_KEY = ""
    # Before the first `up` nothing is signed that must be readable later.
    SECRET_KEY = SECRET_KEY or secrets.token_urlsafe(48)

# Signs grants: an Ed25519 private key in PEM. Keys in the other folder are public ones that only
# verify, so that a signing key can be replaced while its grants live on.
DEVELOPMENT_GRANT_KEY_FILE = DATA_DIR / "grant_key.pem"
GRANT_KEY_FILE = env("FENCEPOST_GRANT_KEY_FILE", default="")
if not GRANT_KEY_FILE and PRODUCTION:
    refuse(
        "FENCEPOST_GRANT_KEY_FILE is required when DATABASE_URL is set: the path of an Ed25519"
        " private key in PEM (openssl genpkey -algorithm ed25519 -out grant_key.pem)"
    )
if PRODUCTION and not os.access(GRANT_KEY_FILE, os.R_OK):
    refuse(f"FENCEPOST_GRANT_KEY_FILE: cannot read {GRANT_KEY_FILE}")
GRANT_KEY_FILE = GRANT_KEY_FILE or str(DEVELOPMENT_GRANT_KEY_FILE)
GRANT_VERIFY_KEYS_DIR = env("FENCEPOST_GRANT_VERIFY_KEYS_DIR", default="")

# --- Django --------------------------------------------------------------------------------------

DEBUG = env.bool("DEBUG", default=False)
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",
    "mesh.admin.apps.ConsoleConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.postgres",
    "pgtrigger",
    "pgactivity",
    "pglock",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_structlog",
    "django_prometheus",
    "axes",
    "mesh",
    "workflows",
]

# Looked for by its name: ours is made from it (config/middleware.py).
SILENCED_SYSTEM_CHECKS = ["security.W003"]
MIDDLEWARE = [
    "django_prometheus.middleware.PrometheusBeforeMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "config.middleware.Session",
    "django.middleware.common.CommonMiddleware",
    "config.middleware.Csrf",
    "config.middleware.Authentication",
    "django_structlog.middlewares.RequestMiddleware",
    "config.middleware.Message",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_prometheus.middleware.PrometheusAfterMiddleware",
    "axes.middleware.AxesMiddleware",
]

# Small and of this process: what is counted or remembered in it may be forgotten at any time.
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.locmem.LocMemCache",
        "OPTIONS": {"MAX_ENTRIES": 20_000},
    }
}

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
APPEND_SLASH = False

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOGIN_REDIRECT_URL = "admin:index"

STATIC_URL = "static/"
STATIC_ROOT = DATA_DIR / "static"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"},
}
WHITENOISE_KEEP_ONLY_HASHED_FILES = True

# --- Database ------------------------------------------------------------------------------------

# When `up` does not run, connecting fails, and manage.py says what to do.
NO_DATABASE = "postgres://fencepost@//nonexistent/fencepost"
LOCK_TIMEOUT_MS = number("FENCEPOST_LOCK_TIMEOUT_MS", 2_000)
STATEMENT_TIMEOUT_MS = number("FENCEPOST_STATEMENT_TIMEOUT_MS", 15_000)
IDLE_IN_TRANSACTION_TIMEOUT_MS = number("FENCEPOST_IDLE_IN_TRANSACTION_TIMEOUT_MS", 10_000)

DATABASES: dict[str, dict[str, Any]] = {
    "default": env.db_url_config(DATABASE_URL or RUN.get("database_url", NO_DATABASE))
}
if not DATABASES["default"].get("ENGINE", "").endswith(".postgresql"):
    refuse("DATABASE_URL must name a PostgreSQL server: postgres://user:password@host:5432/name")
# PostgreSQL's, but for a health check that asks no question.
DATABASES["default"]["ENGINE"] = "config.postgresql"
DATABASES["default"]["CONN_MAX_AGE"] = number("CONN_MAX_AGE", 600)
DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
DATABASES["default"].setdefault("OPTIONS", {}).setdefault("connect_timeout", 5)
# Only statements that bind on the server are prepared: the few of the hot path.
DATABASES["default"]["OPTIONS"].setdefault("prepare_threshold", 3)
DATABASES["default"]["OPTIONS"]["options"] = (
    f"-c lock_timeout={LOCK_TIMEOUT_MS}"
    f" -c statement_timeout={STATEMENT_TIMEOUT_MS}"
    f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_TIMEOUT_MS}"
)

# Of each web process: connections for calls at their work, and calls that may wait for work at once
# (each takes a thread, but no connection). Another connection looks out for those who wait.
WEB_CONNECTIONS = number("FENCEPOST_WEB_CONNECTIONS", 8, least=1, most=1_000)
WEB_WAITERS = number("FENCEPOST_WEB_WAITERS", 200, most=10_000)
# A call that finds no free connection in this time is told that the store is busy.
WEB_CONNECTION_PATIENCE_S = 3.0

# --- API -----------------------------------------------------------------------------------------

REST_FRAMEWORK = api.REST_FRAMEWORK
SPECTACULAR_SETTINGS = api.SPECTACULAR

# --- Sweeps --------------------------------------------------------------------------------------

# No finished pass for longer than this counts as an outage of the sweeps.
SWEEP_OUTAGE_MS = number("FENCEPOST_SWEEP_OUTAGE_MS", 30_000)
# One pass may not take more than this part of an application's live workers offline, if it has at
# least so many; after the hold those still silent are taken whatever others do.
BRAKE_FRACTION = number("FENCEPOST_BRAKE_FRACTION", 0.5, most=1.0)
BRAKE_MIN_WORKERS = number("FENCEPOST_BRAKE_MIN_WORKERS", 5)
BRAKE_HOLD_MS = number("FENCEPOST_BRAKE_HOLD_MS", 30_000)

# --- Hand-over of runs ---------------------------------------------------------------------------

# Who knows whether the old owner of a run has stopped, asked in this order; see
# workflows/evidence.py. Each may take so long, and what it says holds for so long.
EVIDENCE_RESOLVERS = env.list(
    "FENCEPOST_EVIDENCE_RESOLVERS",
    default=["workflows.evidence.CoordinatorEvidence", "workflows.evidence.AttestationEvidence"],
)
EVIDENCE_TIMEOUT_MS = number("FENCEPOST_EVIDENCE_TIMEOUT_MS", 2_000, least=1, most=10_000)
EVIDENCE_MAX_AGE_MS = number("FENCEPOST_EVIDENCE_MAX_AGE_MS", 60_000, least=1)
# After its lease a coordinator may still be in the middle of a call.
COORDINATOR_GRACE_MS = number("FENCEPOST_COORDINATOR_GRACE_MS", 5_000)
# How long an instance of the built-in coordinator that is not heard lives on; it beats three times
# as often.
COORDINATOR_LEASE_MS = number("FENCEPOST_COORDINATOR_LEASE_MS", 30_000, least=1_000, most=600_000)

# --- Retention: days that rows are kept; see mesh/retention.py -----------------------------------

KEEP_ENDED_WORK_DAYS = number("FENCEPOST_KEEP_ENDED_WORK_DAYS", 90, least=1, most=36_500)
KEEP_HISTORY_DAYS = number("FENCEPOST_KEEP_HISTORY_DAYS", 90, least=1, most=36_500)
KEEP_DECISIONS_DAYS = number("FENCEPOST_KEEP_DECISIONS_DAYS", 7, least=1, most=36_500)
KEEP_AUDIT_DAYS = number("FENCEPOST_KEEP_AUDIT_DAYS", 400, least=1, most=36_500)

# --- Celery: the schedule stands in config/celery.py ---------------------------------------------

NO_BROKER = "redis+socket:///nonexistent/valkey.sock"
GIVEN_BROKER_URL = env("CELERY_BROKER_URL", default="")
CELERY_BROKER_URL = GIVEN_BROKER_URL or RUN.get("broker_url", NO_BROKER)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
if CELERY_BROKER_URL.startswith("redis"):
    # What a killed process had taken comes back after this; the default is an hour.
    CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 300}
CELERY_TASK_IGNORE_RESULT = True
CELERY_TIMEZONE = "UTC"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True

# --- Behind a proxy that ends TLS ----------------------------------------------------------------

# Trusts X-Forwarded-Proto, so only for a server that nobody reaches past the proxy.
BEHIND_TLS_PROXY = env.bool("FENCEPOST_BEHIND_TLS_PROXY", default=False)
if BEHIND_TLS_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    SECURE_SSL_REDIRECT = True
    # Probes come from inside, without TLS.
    SECURE_REDIRECT_EXEMPT = [r"^(healthz|readyz|metrics)$"]
    SECURE_HSTS_SECONDS = number("FENCEPOST_HSTS_SECONDS", 31_536_000)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = BEHIND_TLS_PROXY
SESSION_COOKIE_HTTPONLY = True
_VALIDATION = "django.contrib.auth.password_validation"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"{_VALIDATION}.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": f"{_VALIDATION}.CommonPasswordValidator"},
    {"NAME": f"{_VALIDATION}.NumericPasswordValidator"},
]
# A person is locked out by user name and address together: nobody else's failures count.
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_FAILURE_LIMIT = number("FENCEPOST_LOGIN_FAILURES", 10, least=1)
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_RESET_ON_SUCCESS = True
AXES_CLIENT_IP_CALLABLE = "mesh.throttling.address_of"
AXES_LOCKOUT_TEMPLATE = "admin/locked_out.html"
AXES_DISABLE_ACCESS_LOG = True
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False
# More calls with a token that is not valid are told to wait; a valid one never is.
TOKEN_FAILURES_PER_MINUTE = number("FENCEPOST_TOKEN_FAILURES_PER_MINUTE", 100, least=1)
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"

# --- Observing -----------------------------------------------------------------------------------

# No tenant names in it, but it tells how busy the place is: in production closed unless opened.
METRICS_OPEN = env.bool("FENCEPOST_METRICS_OPEN", default=not PRODUCTION)
PROMETHEUS_EXPORT_MIGRATIONS = False
LOG_LEVEL = env("LOG_LEVEL", default="INFO").upper()
LOGGING = logs.configuration(LOG_LEVEL)
# One line per answered request, and for successes only when asked: workers call all the time.
DJANGO_STRUCTLOG_STATUS_START_LOG_LEVEL = logs.DEBUG
DJANGO_STRUCTLOG_STATUS_2XX_LOG_LEVEL = logs.DEBUG
DJANGO_STRUCTLOG_STATUS_DEFAULT_LOG_LEVEL = logs.DEBUG
DJANGO_STRUCTLOG_STATUS_4XX_LOG_LEVEL = logs.INFO
DJANGO_STRUCTLOG_IP_LOGGING_ENABLED = False
DJANGO_STRUCTLOG_CELERY_ENABLED = True
DJANGO_STRUCTLOG_CELERY_DEFAULT_LOG_LEVEL = logs.DEBUG
