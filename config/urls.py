"""Routes: the admin at /admin/, the API at /api/v1/, and what probes and monitoring ask."""

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView

from config import health

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RedirectView.as_view(pattern_name="admin:index")),
    path("admin", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", admin.site.urls),
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", health.metrics),
    # Before those of the mesh, which answer for whatever nobody knows.
    path("api/v1/", include("workflows.api.urls")),
    path("", include("mesh.api.urls")),
]
# Only programs get a problem here; pages stay Django's.
handler400 = "mesh.api.problems.bad_request"
handler500 = "mesh.api.problems.server_error"
