"""The WSGI application that the web server runs."""

import os

from django.core.wsgi import get_wsgi_application

from config.databases import pool_connections

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

application = get_wsgi_application()
pool_connections()
