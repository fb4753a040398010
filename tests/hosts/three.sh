#!/usr/bin/env bash
# A run, its broker and its workers on three hosts, each a network namespace: 50 ms of delay each way, one packet in a hundred
# lost, TLS, and users with the least permissions. Root, iproute2, iptables, openssl, nats-server and python3 are needed.
#   tests/hosts/three.sh path/to/minds-actors
set -euo pipefail
program=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
hosts=(run broker worker)

cleanup() {
  for host in "${hosts[@]}"; do
    ip netns pids "minds-$host" 2>/dev/null | xargs --no-run-if-empty kill -9 2>/dev/null || true
    ip netns del "minds-$host" 2>/dev/null || true
  done
  ip link del minds-bridge 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
cleanup 2>/dev/null
mkdir -p "$work"

# The network: three hosts at one bridge. Each drops one of a hundred packets that come in.
ip link add minds-bridge type bridge
ip link set minds-bridge up
number=1
for host in "${hosts[@]}"; do
  ip netns add "minds-$host"
  ip link add "m-$host" type veth peer name eth0 netns "minds-$host"
  ip link set "m-$host" master minds-bridge up
  ip -n "minds-$host" addr add "10.77.0.$number/24" dev eth0
  ip -n "minds-$host" link set eth0 up
  ip -n "minds-$host" link set lo up
  ip netns exec "minds-$host" iptables -A INPUT -i eth0 -m statistic --mode random --probability 0.01 -j DROP
  number=$((number + 1))
done
on() {
  local host=$1
  shift
  ip netns exec "minds-$host" "$@"
}

# The broker: TLS with an authority of its own, and two users.
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=test authority" \
  -keyout "$work/ca.key" -out "$work/ca.pem" 2>/dev/null
openssl req -newkey rsa:2048 -nodes -subj "/CN=10.77.0.2" -keyout "$work/server.key" -out "$work/server.csr" 2>/dev/null
printf 'subjectAltName=IP:10.77.0.2\nbasicConstraints=CA:FALSE\n' >"$work/san"
openssl x509 -req -in "$work/server.csr" -CA "$work/ca.pem" -CAkey "$work/ca.key" -CAcreateserial -days 2 \
  -extfile "$work/san" -out "$work/server.pem" 2>/dev/null
authorization=$("$program" nats check --permissions far --env ghost_trace)
cat >"$work/nats.conf" <<CONF
listen: 127.0.0.1:4222
jetstream { store_dir: "$work/js" }
tls { cert_file: "$work/server.pem", key_file: "$work/server.key" }
$authorization
CONF
on broker env RUN_PASSWORD=run-password WORKER_PASSWORD=worker-password \
  nats-server --config "$work/nats.conf" >"$work/nats.log" 2>&1 &
on broker python3 "$here/delay.py" 4223 4222 0.05 &
sleep 1

export NATS_URL=tls://10.77.0.2:4223 NATS_CA=$work/ca.pem
for n in 1 2; do
  on worker env NATS_USER=far-worker NATS_PASSWORD=worker-password \
    "$program" worker --run far --name "far-$n" --concurrency 16 >"$work/worker-$n.log" 2>&1 &
done
# A worker without credentials, and one without the authority's certificate.
if on worker "$program" worker --run far >"$work/refused.log" 2>&1; then
  echo "a worker without credentials was let in" >&2
  exit 1
fi
cat >"$work/run.toml" <<CONF
[env]
id = "ghost_trace"
[trainer]
rollouts_per_example = 4
groups_per_batch = 8
total_batches = 10
async_off_policy_steps = 2
training_rank = 1
[trainer.args]
max_new_tokens = 4
[model]
base_model = "tiny-random"
renderer_name = "role_colon"
[tinker]
base_url = "embedded"
[scorer]
transport = "nats"
[nats]
run = "far"
ack_wait_s = 5
[metrics]
addr = "off"
CONF
on run env NATS_USER=far-run NATS_PASSWORD=run-password "$program" run "$work/run.toml" --output-dir "$work/out"
python3 - "$work/out" <<'CHECK'
import glob, json, sys
rows = [json.loads(line) for name in glob.glob(sys.argv[1] + "/rollouts/step_*.jsonl") for line in open(name)]
keys = {(row["group"], row["member"]) for row in rows}
assert len(rows) == len(keys) == 10 * 8 * 4, (len(rows), len(keys))
print(f"{len(rows)} rollouts over three hosts, each trained once")
CHECK
grep -h "Permissions Violation\|Authorization Violation" "$work/nats.log" | sed 's/.*\[ERR\]/nats-server:/' | sort | uniq -c || true
