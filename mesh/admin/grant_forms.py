"""Forms that make grants: what each says, in words and lines. They check shape; what a grant may
say, and whether it is within its parent, is asked of the domain."""

from typing import Any, Final

from django import forms
from django.http import HttpRequest
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from ..models import Application, Grant, Role, Runtime, ScopeKind
from . import access
from .acts import ReasonForm
from .forms import HOUR, LENGTHS, ApplicationChoice, lines, pairs

_LISTS: Final = ("worker_names", "environments", "runtimes")
_OPTIONAL: Final = ("resources", *_LISTS, "labels", "workload_id")


def _text(label: str, help_text: str, *, rows: int = 2, required: bool = False) -> forms.CharField:
    return forms.CharField(
        required=required,
        max_length=20_000,
        label=label,
        help_text=help_text,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": rows, "spellcheck": "false"}),
    )


class _StatementForm(forms.Form):
    """Who may do what, on what, and bound to what."""

    subject = forms.CharField(
        max_length=255,
        initial="service:registrar",
        help_text="Who holds it: kind:id, for example service:registrar.",
        widget=UnfoldAdminTextInputWidget(),
    )
    capabilities = _text(
        "Capabilities",
        "One per line. worker:register lets it register workers; "
        "worker:capability:<name> is a capability such a worker may hold.",
        rows=4,
        required=True,
    )
    resources = _text(
        "Resources",
        f"One per line, as KIND uri; kinds are {', '.join(ScopeKind.values)}. "
        "Without any it reaches the whole application.",
    )
    worker_names = _text(
        "Only for these worker names",
        "One per line; a name may end in *. Without names the holder may register any worker.",
    )
    environments = _text(
        "Only for these environments", "Of submitted work. One per line; a name may end in *."
    )
    runtimes = _text(
        "Only for these runtimes", f"Of workers. One per line: {', '.join(Runtime.values)}."
    )
    labels = _text(
        "Only with these labels",
        "One per line, as key=value. A worker must have all of them, submitted work require them.",
    )
    workload_id = forms.CharField(
        required=False,
        max_length=200,
        label="Only for this workload",
        help_text="Its id. Nothing else may then be done with the grant.",
        widget=UnfoldAdminTextInputWidget(attrs={"spellcheck": "false"}),
    )

    def clean_capabilities(self) -> list[str]:
        return lines(self.cleaned_data["capabilities"])

    def clean_resources(self) -> list[dict[str, str]]:
        parts = [each.split(None, 1) for each in lines(self.cleaned_data["resources"])]
        if any(len(each) != 2 for each in parts):
            raise forms.ValidationError("One KIND uri per line.")
        return [{"kind": kind, "uri": uri} for kind, uri in parts]

    def clean_labels(self) -> dict[str, str]:
        return pairs(self.cleaned_data["labels"])


class GrantForm(_StatementForm):
    """A new grant in an application, and how long it lasts."""

    application = ApplicationChoice(
        queryset=Application.objects.none(), empty_label=None, widget=UnfoldAdminSelectWidget()
    )
    expires_in_s = forms.TypedChoiceField(
        choices=LENGTHS,
        coerce=int,
        initial=30 * 24 * HOUR,
        label="Lasts",
        widget=UnfoldAdminSelectWidget(),
    )
    revision = forms.IntegerField(
        min_value=1,
        max_value=2**63 - 1,
        initial=1,
        help_text="Raise it to renew: a worker never goes back to a lower revision.",
        widget=UnfoldAdminIntegerFieldWidget(),
    )
    field_order = ("application", "subject", "capabilities", "worker_names", "expires_in_s")

    def __init__(self, request: HttpRequest, data: Any = None) -> None:
        super().__init__(data, initial={"capabilities": "worker:register"})
        tenants = access.tenants(request, Role.ADMIN)
        field: Any = self.fields["application"]
        field.queryset = Application.objects.filter(tenant__in=tenants).select_related("tenant")


class DeriveForm(_StatementForm, ReasonForm):
    """A grant within another one. It begins as what that one says, which must be said again."""

    expires_in_s = forms.TypedChoiceField(
        choices=[(0, "1 hour, or until its parent ends"), *LENGTHS],
        coerce=int,
        initial=0,
        label="Lasts",
        widget=UnfoldAdminSelectWidget(),
    )
    field_order = ("subject", "capabilities", "expires_in_s", *_OPTIONAL, "reason")


def statement(data: dict[str, Any]) -> dict[str, Any]:
    """What a filled form says, as the domain takes it; what was left empty binds nothing."""
    bound: dict[str, Any] = {name: lines(data[name]) for name in _LISTS}
    bound |= {"labels": data["labels"], "workload_id": data["workload_id"]}
    return {
        "subject": data["subject"],
        "capabilities": data["capabilities"],
        "resources": data["resources"],
        "constraints": {name: wanted for name, wanted in bound.items() if wanted},
    }


def as_it_is(grant: Grant) -> dict[str, Any]:
    """A grant as the forms show it."""
    bound = grant.constraints
    return {
        "subject": grant.subject,
        "capabilities": "\n".join(grant.capabilities),
        "resources": "\n".join(f"{each['kind']} {each['uri']}" for each in grant.resources),
        **{name: "\n".join(bound.get(name, ())) for name in _LISTS},
        "labels": "\n".join(f"{key}={value}" for key, value in bound.get("labels", {}).items()),
        "workload_id": bound.get("workload_id", ""),
    }
