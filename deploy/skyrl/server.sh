#!/usr/bin/env bash
# SkyRL as the Tinker service, on a Ray cluster of GPU nodes:
#   skyrl/server.sh head                  on the first node: Ray's head and the Tinker API, which waits for all GPUs
#   skyrl/server.sh node HEAD_ADDRESS     on each other node
# Run it in a checkout of SkyRL: `uv` installs what the extras name there. The API has no key of its own: README.md.
set -euo pipefail

model=${SKYRL_MODEL:-Qwen/Qwen3-4B-Instruct-2507}
backend=${SKYRL_BACKEND:-fsdp} # or megatron, for several adapters at a time
nodes=${SKYRL_NODES:-1}
gpus=${SKYRL_GPUS_PER_NODE:-8}
engines=${SKYRL_ENGINES:-$((nodes * gpus))}
parallel=${SKYRL_TENSOR_PARALLEL:-1}
data=${SKYRL_DATA:-$PWD/tinker}          # checkpoints and, by default, the database; on storage that all nodes see
database=${SKYRL_DATABASE_URL:-sqlite:///$data/tinker.db}
address=${SKYRL_ADDR:-127.0.0.1}
port=${SKYRL_PORT:-8000}
ray_port=${RAY_PORT:-6379}

uv_run=(uv run --extra tinker --extra "$backend")

case "${1:-}" in
node)
  exec "${uv_run[@]}" ray start --address "${2:?usage: server.sh node HEAD_ADDRESS}:$ray_port" --num-gpus "$gpus" --block
  ;;
head) ;;
*)
  sed -n '2,5s/^# //p' "$0" >&2
  exit 2
  ;;
esac

mkdir -p "$data"
"${uv_run[@]}" ray start --head --port "$ray_port" --num-gpus "$gpus" --dashboard-host 127.0.0.1
trap '"${uv_run[@]}" ray stop' EXIT

# The API would fail at its first model if GPUs were missing.
until [ "$("${uv_run[@]}" python -c 'import ray; ray.init("auto", logging_level="ERROR"); print(int(ray.cluster_resources().get("GPU", 0)))')" \
  -ge $((nodes * gpus)) ]; do
  echo "waiting for $((nodes * gpus)) GPUs" >&2
  sleep 10
done

config=$(printf '{"trainer.placement.policy_num_nodes": %d, "trainer.placement.policy_num_gpus_per_node": %d, ' "$nodes" "$gpus")
config+=$(printf '"generator.inference_engine.num_engines": %d, "generator.inference_engine.tensor_parallel_size": %d}' \
  "$engines" "$parallel")

export RAY_ADDRESS=auto
# Each node has this checkout and its environment; Ray would send both to all of them.
export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0
# A long poll keeps the API from ending at SIGTERM, so its whole process group is stopped with it.
"${uv_run[@]}" -m skyrl.tinker.api --host "$address" --port "$port" --base-model "$model" --backend "$backend" \
  --backend-config "$config" --database-url "$database" --checkpoints-base "$data/checkpoints"
