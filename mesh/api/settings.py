"""What REST framework and drf-spectacular are told."""

from typing import Any, Final

REST_FRAMEWORK: Final[dict[str, Any]] = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "mesh.api.authentication.BearerAuthentication",
        "mesh.api.authentication.BrowserAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["mesh.api.authentication.IsCaller"],
    "DEFAULT_PARSER_CLASSES": ["mesh.api.parsers.StrictJSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["mesh.api.renderers.FastJSONRenderer"],
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "mesh.api.renderers.Negotiation",
    "DEFAULT_METADATA_CLASS": None,
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "mesh.api.problems.handle",
    "URL_FORMAT_OVERRIDE": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}

_ID: Final = {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,200}$"}

SPECTACULAR: Final[dict[str, Any]] = {
    "TITLE": "Fencepost",
    "DESCRIPTION": "Worker meshes and durable workflow runs: who may run work, who runs it now,"
    " what if they fall silent; who may move a run, and on what evidence.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    # Bodies say themselves what may be left out of them.
    "COMPONENT_SPLIT_PATCH": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "PATH_CONVERTER_OVERRIDES": {"any": _ID},
    "ENUM_NAME_OVERRIDES": {
        "Runtime": "mesh.models.Runtime",
        "Lifecycle": "mesh.models.Lifecycle",
        "Health": "mesh.models.Health",
        "WorkloadState": "mesh.models.State",
        "AttemptStatus": "mesh.models.AttemptStatus",
        "GrantStatus": "mesh.models.GrantStatus",
        "RevocationKind": "mesh.models.RevocationKind",
        "Backoff": "mesh.models.Backoff",
        "LostPolicy": "mesh.models.LostPolicy",
        "ScopeKind": "mesh.models.ScopeKind",
        "RunStatus": "workflows.models.RunStatus",
        "CoordinatorKind": "workflows.models.CoordinatorKind",
        "StepState": "workflows.models.StepState",
        "Effect": "workflows.models.Effect",
        "HandoffMode": "workflows.models.HandoffMode",
        "OutcomeKind": "workflows.models.OutcomeKind",
        "OutcomeSource": "workflows.models.OutcomeSource",
        "Access": "workflows.models.Access",
        "LeaseScope": "workflows.models.LeaseScope",
        "Verdict": "workflows.models.Verdict",
    },
    "APPEND_COMPONENTS": {
        "securitySchemes": {
            "apiToken": {
                "type": "http",
                "scheme": "bearer",
                "description": "An API token, `fpt_…`: a service with a role in one tenant.",
            },
            "workerCredential": {
                "type": "http",
                "scheme": "bearer",
                "description": "The credential of a worker, `fpw_…`; it acts as that worker only.",
            },
            "session": {"type": "apiKey", "in": "cookie", "name": "sessionid"},
        }
    },
}
