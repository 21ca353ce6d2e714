#!/usr/bin/env bash
# Builds the sdist, from it the wheel, installs that in a clean environment, and tries it there. `make package`.
# The dependencies are those of .venv, read through a .pth file: downloading torch again would prove nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3} BIN=${BIN:-.venv/bin}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist
"$PYTHON" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt 'setuptools>=77' wheel
"$work/build/bin/python" -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
mkdir "$work/sdist" && tar -xzf dist/sparsefed-*.tar.gz -C "$work/sdist" --strip-components=1
(cd "$work/sdist" && "$work/build/bin/python" -c 'from setuptools import build_meta; build_meta.build_wheel(".")') > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cp "$work"/sdist/*.whl dist/
"$PYTHON" -m venv "$work/clean"
"$work/clean/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps dist/sparsefed-*.whl
site=$("$work/clean/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$BIN/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/dependencies.pth"
cd "$work"
"$work/clean/bin/sparsefed" --version
"$work/clean/bin/python" -c 'import sparsefed; assert sparsefed.__file__.startswith("'"$work"'"), sparsefed.__file__'
"$work/clean/bin/sparsefed" list bases > "$work/bases" && grep -q fmnist/cross-device "$work/bases"  # files of the package are there
"$work/clean/bin/sparsefed" reproduce --list > /dev/null
"$work/clean/bin/sparsefed" init tried.toml > /dev/null
"$work/clean/bin/sparsefed" run tried.toml --set rounds=2 --set evaluate_every=2 > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
echo "dist/ holds $(cd "$OLDPWD" && ls dist | tr '\n' ' ')"
