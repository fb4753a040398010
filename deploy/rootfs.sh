#!/usr/bin/env bash
# Builds the image's root file system without a container engine, and runs the program in it as the image's user:
#   deploy/rootfs.sh BINARY [FOLDER]
# As root on Debian or Ubuntu with mmdebstrap. What `deploy/Dockerfile` installs is read from that file. Prints the size of
# the file system, which is that of the image, and fails beyond 150 MB.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${1:?usage: deploy/rootfs.sh BINARY [FOLDER]}
root=${2:-$(mktemp -d)/rootfs}
limit=$((150 * 1000 * 1000))
user=$(sed -n 's/^USER //p' deploy/Dockerfile)
release=$(sed -n 's/^ARG DEBIAN=//p' deploy/Dockerfile)
packages=$(sed -n 's/.*--no-install-recommends \(ca-certificates.*\) \\$/\1/p' deploy/Dockerfile)

# As the `slim` images: no manuals, no documentation, no translations.
if [ ! -d "$root" ]; then
  mmdebstrap --quiet --variant=apt --include="usr-is-merged,${packages// /,}" \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --aptopt='APT::Install-Recommends "false";' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' "$release" "$root" 2>"$root.log" \
    || { tail -n 20 "$root.log" >&2; exit 1; }
fi
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/var/cache/debconf/*-old \
  "$root"/usr/lib/python3.*/{test,pydoc_data,lib2to3}

strip -o "$root/usr/local/bin/minds-actors" "$binary"
mkdir -p "$root/usr/share/minds-actors" "$root/data"
cp -r configs "$root/usr/share/minds-actors/"
chown "$user" "$root/data"

in_root() {
  # PID 1 of namespaces of its own, as in a container.
  # shellcheck disable=SC2016 # for the inner shell
  unshare --mount --pid --fork --kill-child sh -ec '
    root=$1 user=$2
    shift 2
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    exec chroot --userspec="$user" "$root" /usr/bin/env -i --chdir=/data \
      PATH=/usr/local/bin:/usr/bin:/bin HOME=/data MINDS_MODELS=/data/models PYTHONDONTWRITEBYTECODE=1 MINDS_LOG=warn "$@"
  ' sh "$root" "$user" "$@"
}

size=$(du --summarize --apparent-size --block-size=1 "$root" | cut -f1)
echo "size: $((size / 1000 / 1000)) MB, of which the program has $(($(stat -c %s "$root/usr/local/bin/minds-actors") / 1000 / 1000)) MB"
[ "$size" -le "$limit" ] || { echo "the limit is $((limit / 1000 / 1000)) MB" >&2; exit 1; }

linked=$(in_root ldd /usr/local/bin/minds-actors)
if grep 'not found' <<<"$linked"; then exit 1; fi
in_root id
in_root minds-actors --version
in_root python3 -c 'import asyncio, ctypes, json, multiprocessing, sqlite3, ssl, sys, urllib.request; print("python", sys.version.split()[0])'

in_root minds-actors run /usr/share/minds-actors/configs/ci_test.toml --output-dir outputs/rootfs | tail -n 1
rm -r "$root/data/outputs"
[ -z "$(find "$root/data" -mindepth 1 -not -user "${user%:*}")" ]

# The server answers, and ends by SIGTERM as PID 1.
log=$(mktemp)
in_root minds-actors serve --model tiny-random --addr 127.0.0.1:0 --data serve >"$log" 2>&1 &
server=$!
trap 'kill -KILL "$server" 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 100); do
  url=$(sed -n 's/^address  *//p' "$log")
  [ -z "$url" ] || break
  sleep 0.1
done
python3 - "$url" <<'PYTHON'
import json, sys, urllib.request
with urllib.request.urlopen(sys.argv[1] + "/api/v1/get_server_capabilities", timeout=10) as answer:
    print("serve:", json.load(answer)["supported_models"])
PYTHON
inner=$(cat "/proc/$server/task/$server/children")
# `in_root` runs in a subshell here; PID 1 is a child of its unshare.
while [ -n "${inner// /}" ] && [ "$(readlink "/proc/${inner%% *}/ns/pid")" = "$(readlink /proc/self/ns/pid)" ]; do
  inner=$(cat "/proc/${inner%% *}/task/${inner%% *}/children")
done
kill -TERM "${inner%% *}"
code=0
wait "$server" || code=$?
trap 'rm -f "$log"' EXIT
echo "serve: exit code $code after SIGTERM"
exit "$code"
