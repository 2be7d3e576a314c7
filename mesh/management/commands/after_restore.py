"""After a database restore: old tokens and claims are worth nothing from here on."""

from typing import Any

from mesh import restore
from mesh.management.base import AnswerCommand


class Command(AnswerCommand):
    help = (
        "Run once after the database was restored, before the server starts: raises all fencing"
        " tokens by 1 000 000, ends live attempts as lost, has every worker reconcile, lets"
        " nothing new start in open runs before what was under way is explained."
    )

    def answer(self, **options: Any) -> dict[str, Any]:
        return restore.after_restore(actor="system:after_restore").shown()
