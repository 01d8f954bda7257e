#!/bin/sh
# Prints a Python that can make our virtual environment, or says in words why there is none.
# 3.11 first: the versions in constraints.txt were tested with it.
found=""
for name in ${COCKPIT_PYTHON:-python3.11 python3.12 python3.13 python3.14 python3.10 python3 python}; do
    path=$(command -v "$name" 2>/dev/null) || continue
    # A pyenv shim may exist without a version behind it, so each is tried, not only looked up.
    version=$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2] if sys.version_info >= (3, 10) else "")' \
        2>/dev/null) || continue
    [ -n "$version" ] || continue
    if "$path" -c 'import venv, ensurepip' 2>/dev/null; then
        echo "$path"
        exit 0
    fi
    found="$path (Python $version)"
done
if [ -n "$found" ]; then
    echo "cockpit: $found cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2
else
    echo "cockpit: no Python 3.10 or newer was found; install Python 3.11, or name one: make COCKPIT_PYTHON=/path/to/python3" >&2
fi
exit 1
