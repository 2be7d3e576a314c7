"""Makes Django's admin the console: our site, our models only."""

from django.contrib.admin.apps import AdminConfig


class ConsoleConfig(AdminConfig):
    default_site = "mesh.admin.site.ConsoleSite"

    def ready(self) -> None:
        super().ready()
        from . import registry

        registry.register()
