"""A package, so that `tests.problems` is ours even where a dependency installs a `tests` of its own."""
