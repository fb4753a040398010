#!/usr/bin/env bash
# Builds the wheel with maturin, installs it with pip into a fresh environment, and compares what both programs say.
# After tests/run.sh, whose build it takes, nothing is compiled again.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-$PWD/target}
work=$target/wheel
if [ ! -x "$work/maturin/bin/maturin" ]; then
  python3 -m venv --clear "$work/maturin"
  "$work/maturin/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2'
fi
rm -rf "$work/dist"
"$work/maturin/bin/maturin" build --release --locked --quiet --out "$work/dist"
python3 -m venv --clear "$work/installed"
"$work/installed/bin/pip" install --quiet --disable-pip-version-check --no-index "$work"/dist/minds_actors-*.whl
installed=$work/installed/bin/minds-actors
[ "$("$installed" --version)" = "$("$target/release/minds-actors" --version)" ]
"$installed" check --offline configs/ci_test.toml | head -n 1
