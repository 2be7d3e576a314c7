"""Find cancelled work, and acts by what they were about or when, without whole reads."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("mesh", "0010_attestations")]
    operations = [
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["tenant", "target", "-id"], name="audit_of_a_target"),
        ),
        migrations.AddIndex(
            model_name="auditentry",
            index=models.Index(fields=["tenant", "at"], name="audit_by_age"),
        ),
        migrations.AddIndex(
            model_name="workload",
            index=models.Index(
                condition=models.Q(("state", "SUCCEEDED"), _negated=True),
                fields=["tenant", "state", "-created_at", "-id"],
                name="work_by_state_but_done",
            ),
        ),
        migrations.RemoveIndex(model_name="workload", name="unfinished_work_by_state"),
    ]
