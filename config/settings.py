"""All settings, from the environment. Every name is documented in `.env.example`."""

from pathlib import Path

import environ

from config.runfile import RunFile

BASE_DIR = Path(__file__).resolve().parent.parent
env = environ.FileAwareEnv()
environ.Env.read_env(BASE_DIR / ".env")

DATA_DIR = BASE_DIR / env.path("FENCEPOST_DATA_DIR", default=".data")
RUN = RunFile(DATA_DIR).read()

DEBUG = env.bool("DEBUG", default=False)
SECRET_KEY = env("SECRET_KEY", default="insecure-development-key")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"])

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "django.contrib.admin",
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
    "mesh",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

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

NO_DATABASE = "postgres://fencepost@//nonexistent/fencepost"
LOCK_TIMEOUT_MS = env.int("FENCEPOST_LOCK_TIMEOUT_MS", default=2_000)
STATEMENT_TIMEOUT_MS = env.int("FENCEPOST_STATEMENT_TIMEOUT_MS", default=15_000)
IDLE_IN_TRANSACTION_TIMEOUT_MS = env.int("FENCEPOST_IDLE_IN_TRANSACTION_TIMEOUT_MS", default=10_000)

# Without DATABASE_URL the database is the one that `up` runs; when it does not run, connecting to
# its empty socket folder fails, and manage.py says what to do.
DATABASES = {"default": env.db("DATABASE_URL", default=RUN.get("database_url", NO_DATABASE))}
DATABASES["default"]["CONN_MAX_AGE"] = env.int("CONN_MAX_AGE", default=600)
DATABASES["default"].setdefault("OPTIONS", {})["options"] = (
    f"-c lock_timeout={LOCK_TIMEOUT_MS}"
    f" -c statement_timeout={STATEMENT_TIMEOUT_MS}"
    f" -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_TIMEOUT_MS}"
)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
LOGIN_REDIRECT_URL = "admin:index"

REST_FRAMEWORK: dict[str, object] = {}
