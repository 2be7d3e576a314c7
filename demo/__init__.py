"""A small world to look at: agents that do real work on documents, and a stream of such work.

Talks to the server through the public API and the management commands alone.
"""
