"""Routes of the API about runs. Ids are taken as they come and judged by the views."""

from django.urls import URLPattern, path

# Also registers the converter `any`.
from mesh.api import urls as _mesh  # noqa: F401

from .views import authority, coordinators, definitions, runs, steering

urlpatterns: list[URLPattern] = [
    path("definitions", definitions.Definitions.as_view()),
    path("definitions/<any:definition_id>/<any:version>", definitions.Definition.as_view()),
    path("runs", runs.Runs.as_view()),
    path("runs/<any:run_id>/history", runs.History.as_view()),
    path("runs/<any:run_id>/admission", runs.Admission.as_view()),
    path("runs/<any:run_id>/resources", runs.Resources.as_view()),
    path("runs/<any:run_id>/resource-conflict", runs.ResourceConflict.as_view()),
    path("runs/<any:run_id>/attempts", runs.Attempts.as_view()),
    path("runs/<any:run_id>/attempts/<any:dispatch_identity>/settle", runs.Settle.as_view()),
    path("runs/<any:run_id>/pause", steering.Pause.as_view()),
    path("runs/<any:run_id>/resume", steering.Resume.as_view()),
    path("runs/<any:run_id>/cancel", steering.Cancel.as_view()),
    path("runs/<any:run_id>/control-failure", steering.Fail.as_view()),
    path("runs/<any:run_id>/control-failure/clear", steering.Clear.as_view()),
    path("runs/<any:run_id>/recovery/finish", steering.FinishRecovery.as_view()),
    path("runs/<any:run_id>/terminalize", steering.Terminalize.as_view()),
    path("runs/<any:run_id>/authority", authority.Claim.as_view()),
    path("runs/<any:run_id>/adopt", authority.Adopt.as_view()),
    path("runs/<any:run_id>/handoffs", authority.Handoffs.as_view()),
    path("runs/<any:run_id>/attestations", authority.Attestations.as_view()),
    path("runs/<any:run_id>", runs.Run.as_view()),
    path("attestations/<any:attestation_id>/confirm", authority.Confirm.as_view()),
    path("coordinators", coordinators.Coordinators.as_view()),
    path("coordinators/<any:instance_id>/heartbeat", coordinators.Heartbeat.as_view()),
    path("coordinators/<any:instance_id>/relinquish", coordinators.Relinquish.as_view()),
]
