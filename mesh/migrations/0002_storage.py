"""Leave room in the pages of rows that are rewritten often, so that updates stay in place.

Worker rows are written by every heartbeat and claim without touching an indexed column; with room
in the page PostgreSQL need not touch the indexes at all. Often rewritten tables are also vacuumed
sooner than the default tenth or fifth of a big table.
"""

from django.db import migrations

HOT = """
alter table mesh_worker set (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
alter table mesh_attempt set (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02);
alter table mesh_workload set (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02);
"""
DEFAULTS = """
alter table mesh_worker reset (fillfactor, autovacuum_vacuum_scale_factor);
alter table mesh_attempt reset (fillfactor, autovacuum_vacuum_scale_factor);
alter table mesh_workload reset (fillfactor, autovacuum_vacuum_scale_factor);
"""


class Migration(migrations.Migration):
    dependencies = [("mesh", "0001_initial")]
    operations = [migrations.RunSQL(HOT, DEFAULTS)]
