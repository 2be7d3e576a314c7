"""Forms that make something: a pool, an API token, a member. They check shape; the rest is asked
of the domain functions, whose refusals appear on the form."""

from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.http import HttpRequest
from unfold.widgets import (
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminPasswordWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from ..models import Application, Role, Tenant
from . import access
from .acts import ReasonForm

HOUR: Final = 3600
LENGTHS: Final = [
    (HOUR, "1 hour"),
    (24 * HOUR, "1 day"),
    (7 * 24 * HOUR, "7 days"),
    (30 * 24 * HOUR, "30 days"),
    (90 * 24 * HOUR, "90 days"),
    (365 * 24 * HOUR, "1 year"),
]


if TYPE_CHECKING:
    _TenantField = forms.ModelChoiceField[Tenant]
    _ApplicationField = forms.ModelChoiceField[Application]
else:
    _TenantField = _ApplicationField = forms.ModelChoiceField  # generic for the type checker only


class TenantChoice(_TenantField):
    """The tenants in which the person is an admin."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            queryset=Tenant.objects.none(),
            empty_label=None,
            widget=UnfoldAdminSelectWidget(),
            **kwargs,
        )


class ApplicationChoice(_ApplicationField):
    def label_from_instance(self, obj: Application) -> str:
        return f"{obj.tenant.name} / {obj.name}"


class _PoolFields(forms.Form):
    """What a pool is made of."""

    name = forms.CharField(max_length=200, widget=UnfoldAdminTextInputWidget())
    capabilities = forms.CharField(
        required=False,
        max_length=20_000,
        help_text="One per line. Members without them do not count.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, "spellcheck": "false"}),
    )
    required_labels = forms.CharField(
        required=False,
        max_length=40_000,
        help_text="One per line, as key=value. Members without them do not count.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2, "spellcheck": "false"}),
    )
    worker_ids = forms.CharField(
        required=False,
        max_length=2_000_000,
        label="Members",
        help_text="The ids of workers of the application, one per line.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 6, "spellcheck": "false"}),
    )
    max_concurrency = forms.IntegerField(
        required=False,
        min_value=1,
        max_value=2**31 - 1,
        label="Limit (optional)",
        help_text="How many attempts of work that names the pool may be live at once.",
        widget=UnfoldAdminIntegerFieldWidget(),
    )

    def clean_capabilities(self) -> list[str]:
        return lines(self.cleaned_data["capabilities"])

    def clean_worker_ids(self) -> list[str]:
        return lines(self.cleaned_data["worker_ids"])

    def clean_required_labels(self) -> dict[str, str]:
        return pairs(self.cleaned_data["required_labels"])


class PoolForm(_PoolFields):
    """A new pool of an application."""

    application = ApplicationChoice(
        queryset=Application.objects.none(), empty_label=None, widget=UnfoldAdminSelectWidget()
    )
    pool_id = forms.CharField(
        max_length=200,
        label="Id",
        help_text="What work names in its policy; it never changes.",
        widget=UnfoldAdminTextInputWidget(attrs={"spellcheck": "false"}),
    )
    field_order = ("application", "pool_id", "name")

    def __init__(self, request: HttpRequest, data: Any = None) -> None:
        super().__init__(data)
        tenants = access.tenants(request, Role.OPERATOR)
        field: Any = self.fields["application"]
        field.queryset = Application.objects.filter(tenant__in=tenants).select_related("tenant")


class ChangePoolForm(_PoolFields, ReasonForm):
    """A pool as it is to be from now on."""

    field_order = ("name", "capabilities", "required_labels", "worker_ids", "max_concurrency")


def pairs(text: str) -> dict[str, str]:
    """Labels, one key=value per line; refuses other lines and a key that stands there twice."""
    labels: dict[str, str] = {}
    for line in lines(text):
        key, sign, value = line.partition("=")
        if not sign or key in labels:
            raise forms.ValidationError("One key=value per line, each key once.")
        labels[key] = value
    return labels


def lines(text: str) -> list[str]:
    """The lines that are not blank, each once."""
    return list(dict.fromkeys(each.strip() for each in text.splitlines() if each.strip()))


class TokenForm(forms.Form):
    """A service's way in."""

    tenant = TenantChoice()
    name = forms.CharField(
        max_length=200,
        help_text="The service's name: the token speaks for service:<name>.",
        widget=UnfoldAdminTextInputWidget(attrs={"autofocus": True}),
    )
    role = forms.ChoiceField(
        choices=Role.choices,
        initial=Role.OPERATOR,
        help_text="Viewers read, operators also act on work and workers, admins also on rights.",
        widget=UnfoldAdminSelectWidget(),
    )
    expires_in_s = forms.TypedChoiceField(
        choices=[*LENGTHS, (0, "until it is revoked")],
        coerce=int,
        initial=90 * 24 * HOUR,
        label="Lasts",
        widget=UnfoldAdminSelectWidget(),
    )

    def __init__(self, request: HttpRequest, data: Any = None) -> None:
        super().__init__(data)
        _offer_tenants(self, request)


class MemberForm(forms.Form):
    """A new person who may sign in."""

    tenant = TenantChoice()
    name = forms.CharField(
        max_length=150,
        label="User name",
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off", "autofocus": True}),
    )
    role = forms.ChoiceField(
        choices=Role.choices, initial=Role.VIEWER, widget=UnfoldAdminSelectWidget()
    )
    password = forms.CharField(
        min_length=10,
        max_length=200,
        strip=False,
        label="First password",
        help_text="At least 10 characters. The person changes it after signing in.",
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"}),
    )

    def __init__(self, request: HttpRequest, data: Any = None) -> None:
        super().__init__(data)
        _offer_tenants(self, request)


def _offer_tenants(form: forms.Form, request: HttpRequest) -> None:
    keys = [each.pk for each in access.tenants(request, Role.ADMIN)]
    field: Any = form.fields["tenant"]
    field.queryset = Tenant.objects.filter(pk__in=keys)
