"""The edge of workflows: routes beside those of the mesh, in the same document."""

from mesh.api.examples import EXAMPLES

from . import examples

EXAMPLES.update(examples.EXAMPLES)
