"""Routes of the API. Ids are taken as they come and judged by the views, each with its code."""

from django.urls import URLPattern, URLResolver, include, path, register_converter
from django.urls.converters import StringConverter

from .views import claims, documents, grants, pools, steering, sweeps, workers, workloads


class AnyText(StringConverter):
    """Whatever stands in the path, slashes and line ends too."""

    regex = r"[\s\S]+"


register_converter(AnyText, "any")

_V1: list[URLPattern | URLResolver] = [
    path("workers", workers.Workers.as_view()),
    path("workers/<any:worker_id>/heartbeat", workers.Heartbeat.as_view()),
    path("workers/<any:worker_id>/claims", workers.Claims.as_view()),
    path("workers/<any:worker_id>/starts", workers.Starts.as_view()),
    path("workers/<any:worker_id>/results", workers.Results.as_view()),
    path("workers/<any:worker_id>/reconcile", workers.Reconcile.as_view()),
    path("workers/<any:worker_id>/drain", workers.Drain.as_view()),
    path("workers/<any:worker_id>/undrain", workers.Undrain.as_view()),
    path("workers/<any:worker_id>/recover", workers.Recover.as_view()),
    path("workers/<any:worker_id>", workers.Worker.as_view()),
    path("workloads", workloads.Workloads.as_view()),
    path("workloads/batch", workloads.Batch.as_view()),
    path("workloads/<any:workload_id>/history", workloads.History.as_view()),
    path("workloads/<any:workload_id>/attempts", workloads.Attempts.as_view()),
    path("workloads/<any:workload_id>/checkpoints", workloads.Checkpoints.as_view()),
    path("workloads/<any:workload_id>/placement", steering.Placement.as_view()),
    path("workloads/<any:workload_id>/decisions", steering.Decisions.as_view()),
    path("workloads/<any:workload_id>/place", workloads.Place.as_view()),
    path("workloads/<any:workload_id>/cancel", workloads.Cancel.as_view()),
    path("workloads/<any:workload_id>/retry", workloads.Retry.as_view()),
    path("workloads/<any:workload_id>/resolve", workloads.Resolve.as_view()),
    path("workloads/<any:workload_id>/reclaim", workloads.Reclaim.as_view()),
    path("workloads/<any:workload_id>", workloads.Workload.as_view()),
    path("pauses", steering.Pauses.as_view()),
    path("pauses/<any:pause_id>", steering.Pause.as_view()),
    path("claims/<any:claim_id>/start", claims.Start.as_view()),
    path("claims/<any:claim_id>/renew", claims.Renew.as_view()),
    path("claims/<any:claim_id>/checkpoint", claims.Checkpoint.as_view()),
    path("claims/<any:claim_id>/complete", claims.Complete.as_view()),
    path("claims/<any:claim_id>/fail", claims.Fail.as_view()),
    path("claims/<any:claim_id>/cancelled", claims.Cancelled.as_view()),
    path("claims/<any:claim_id>/release", claims.Release.as_view()),
    path("claims/<any:claim_id>/validate", claims.Validate.as_view()),
    path("pools", pools.Pools.as_view()),
    path("pools/<any:pool_id>", pools.Pool.as_view()),
    path("grants", grants.Grants.as_view()),
    path("grants/<any:grant_id>/delegate", grants.Delegate.as_view()),
    path("grants/<any:grant_id>/revoke", grants.Revoke.as_view()),
    path("grants/<any:grant_id>", grants.Grant.as_view()),
    path("sweeps", sweeps.Sweeps.as_view()),
    path("incidents", sweeps.Incidents.as_view()),
    path("incidents/<any:incident_id>/resume", sweeps.Resume.as_view()),
    path("revocations", grants.Revocations.as_view()),
    path("schema", documents.Schema.as_view(), name="api-schema"),
    path("docs", documents.Docs.as_view(), name="api-docs"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path(".well-known/jwks.json", grants.Keys.as_view(), name="jwks"),
    path("api/v1/", include(_V1)),
    path("api", documents.unknown),
    path("api/", documents.unknown),
    path("api/<any:rest>", documents.unknown),
]
