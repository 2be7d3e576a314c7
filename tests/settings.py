"""The product's settings, made quick and plain for tests."""

from config.settings import *  # noqa: F403 - exactly those settings, with the changes below

# For its `flush`, which runs after every test with real transactions.
INSTALLED_APPS += ["tests"]  # noqa: F405
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    # Needs no collectstatic before.
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
}
ALLOWED_HOSTS = ["*"]
# Static files straight from the apps.
WHITENOISE_AUTOREFRESH = True
WHITENOISE_USE_FINDERS = True
