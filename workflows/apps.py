from django.apps import AppConfig


class WorkflowsConfig(AppConfig):
    name = "workflows"
    verbose_name = "Workflows"

    def ready(self) -> None:
        from . import evidence, receivers

        receivers.connect()
        # A setting that leads nowhere shows now, not when a run is to be handed over.
        evidence.resolvers()
