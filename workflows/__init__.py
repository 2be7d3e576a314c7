"""Durable workflow runs over the mesh: who may move a run, what was tried, what is reserved.

Calls `mesh` functions; `mesh` never imports anything from here.
"""
