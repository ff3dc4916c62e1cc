#!/usr/bin/env bash
# Tests the package as users get it: builds it, installs its wheel into an empty environment, and uses it
# elsewhere.
#
#     scripts/wheel_test.sh [PYTHON]     PYTHON needs the package `build`
set -euo pipefail
python=${1:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$root"
# The source archive is built first, and the wheel from it, so that both are known to be complete.
"$python" -m build --outdir "$place/dist" . >"$place/build.log" 2>&1 || { cat "$place/build.log"; exit 1; }
"$python" -m venv "$place/environment"
"$place/environment/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$place"/dist/*.whl
cd "$place"
unset PYTHONPATH
export PATH="$place/environment/bin:$PATH"
fedmt --version
fedmt quickstart --quick
fedmt compare quickstart/single quickstart/fedmt-t --metric balanced_accuracy
test -s quickstart/report.html
fedmt export quickstart/fedmt-t --safetensors model.safetensors
echo "The wheel installs and runs: $(basename dist/*.whl)"
