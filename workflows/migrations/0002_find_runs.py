"""Sweeps page over open runs alone; lists find runs by the beginning of their ids, and who drives."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("workflows", "0001_initial")]
    operations = [
        migrations.AlterField(
            model_name="run",
            name="run_id",
            field=models.CharField(db_collation="C", max_length=200),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(("status", "OPEN")), fields=["id"], name="open_runs"
            ),
        ),
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                fields=["tenant", "coordinator", "-created_at", "-id"],
                name="runs_by_coordinator",
            ),
        ),
    ]
