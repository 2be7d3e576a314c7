"""What happened to runs, and who did it."""

from django.db import models

from mesh.models.history import append_only

from .runs import Run


class RunEvent(models.Model):
    """One accepted change of a run; sequences are 1, 2, 3 … without a gap."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="events", db_index=False)
    sequence = models.BigIntegerField()
    event = models.CharField(max_length=64)
    actor = models.CharField(max_length=255)
    at = models.DateTimeField()
    evidence = models.JSONField(default=dict)

    class Meta:
        ordering = ["sequence"]
        constraints = [
            models.UniqueConstraint(fields=["run", "sequence"], name="run_event_sequence_is_unique")
        ]
        triggers = [append_only()]

    def __str__(self) -> str:
        return f"{self.sequence} {self.event}"
