"""What the console shows of workflows, and what people may do to runs there.

Django imports this when it looks for admin modules; what stands here is put into the console, which
knows nothing of workflows.
"""

from mesh.admin import home, registry, search, theme

from ..models import Attestation, Coordinator, Definition, Run, RunAttempt
from . import alarms
from .attempts import RunAttemptAdmin
from .attestations import AttestationAdmin
from .coordinators import CoordinatorAdmin
from .definitions import DefinitionAdmin
from .runs import RunAdmin

registry.also(
    {
        Run: RunAdmin,
        Definition: DefinitionAdmin,
        RunAttempt: RunAttemptAdmin,
        Coordinator: CoordinatorAdmin,
        Attestation: AttestationAdmin,
    }
)
theme.also(
    "Workflows",
    [
        theme.item("Runs", "account_tree", "run", app="workflows"),
        theme.item("Definitions", "schema", "definition", app="workflows"),
        theme.item("Run attempts", "repeat", "runattempt", app="workflows"),
        theme.item("Coordinators", "hub", "coordinator", app="workflows"),
        theme.item("Attestations", "history_edu", "attestation", app="workflows"),
    ],
    after="Work",
)
home.also(alarms.alarms)
search.also(alarms.find)
