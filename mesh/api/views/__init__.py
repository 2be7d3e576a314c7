"""One view per route: check the shape, call the domain, render what it returns."""
