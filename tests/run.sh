#!/usr/bin/env bash
# Installs the system packages that the tests need and this machine lacks, then runs all tests.
# Installs with apt, as root or through sudo; on other systems it names what is missing and stops.
# Arguments go to cargo test: `tests/run.sh -- --skip online_` leaves out the tests that need the network or a browser.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need cargo "cargo (https://rustup.rs)"
need gcc build-essential
need python3 python3
need promtool prometheus
need nats-server nats-server
need node nodejs
need npm npm
# Any Chromium-based browser serves; Ubuntu has Chromium only as a snap: install Google Chrome there (README.md).
[ -n "${CHROMIUM:-}" ] || command -v google-chrome >/dev/null || need chromium chromium
python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
python3 -c 'import ensurepip' >/dev/null 2>&1 || missing+=(python3-venv)

if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  [ "$(id -u)" -eq 0 ] || as_root=(sudo)
  if [[ "${missing[0]}" == cargo* ]] || ! command -v apt-get >/dev/null || ! command -v "${as_root[0]:-apt-get}" >/dev/null; then
    printf 'tests/run.sh: install these first: %s\n' "${missing[*]}" >&2
    exit 1
  fi
  "${as_root[@]}" apt-get update
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
fi

exec cargo test --release --workspace --locked "$@"
