#!/bin/sh
# Builds the image, trains a small federation in containers as docs/operate.md says, and asks after their health.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
compose() { docker compose -f "$here/compose.yaml" --project-directory "$work" "$@"; }
end() { mkdir -p "$here/build"; compose logs > "$here/build/containers.log" 2>&1; compose down -v; rm -rf "$work"; }
trap end EXIT

docker build -t fedgrec "$here"
fedgrec federation init --nodes 3 --out "$work/fed" --host server --data demo --users 20 --rounds 20
mkdir -p "$work/data/node-0" "$work/data/node-1" "$work/data/node-2"
export FEDGREC_UID=$(id -u) FEDGREC_GID=$(id -g)
compose up --detach --no-build
server=$(compose ps -q server)
node=$(compose ps -q node-0)
for _ in $(seq 60); do
    is=$(docker inspect -f '{{.State.Health.Status}}' "$node")
    test "$is" = healthy && break
    sleep 3
done
test "$is" = healthy
test "$(timeout 900 docker wait "$server")" = 0  # it ends once the federation is trained
test -d "$work/fed/server/run"
fedgrec federation status "$work/fed/server"
echo "The federation was trained in containers."
