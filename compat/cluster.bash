# Sourced by run and failover: a `gantry dev` of our own, and the clients' programs. Needs $root and $work.

say() { printf '%s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

# Finds the binary: the one named, or the release build of this repository.
gantry_binary() { # [BIN]
  local binary=${1:-$root/target/release/gantry}
  if [ ! -x "$binary" ]; then
    say "there is no $binary; build it with 'cargo build --release', or name one with --gantry"
    return 2
  fi
  realpath "$binary"
}

# Starts `gantry dev ARGS…`, which keeps what it has and says below DIR, and waits until it says that it runs; sets
# namesrv. Without a base port it takes one below those that the kernel hands out, and another if something listens there.
cluster_pids=()
start_cluster() { # BIN BASE_PORT DIR ARGS…
  local binary=$1 base_port=$2 dir=$3 tries=1 port pid; shift 3
  [ -n "$base_port" ] || tries=5
  while [ $tries -gt 0 ]; do
    tries=$((tries - 1))
    port=${base_port:-$((12000 + RANDOM % 180 * 100))}
    # Of a try before, which would not let this one have other ports.
    rm -rf "$dir"
    mkdir -p "$dir"
    "$binary" dev --json --base-port "$port" "$@" >"$dir/dev.json" 2>"$dir/dev.log" </dev/null &
    pid=$!
    cluster_pids+=("$pid")
    for _ in $(seq 300); do
      namesrv=$(grep -o '"namesrv": *"[^"]*"' "$dir/dev.json" | head -n 1 | sed 's/.*: *"//; s/"$//' || true)
      [ -n "$namesrv" ] && return
      if ! kill -0 "$pid" 2>/dev/null; then break; fi
      sleep 0.1
    done
    grep -q 'is in use' "$dir/dev.log" || break
  done
  say "gantry dev did not come up; it said:"
  cat "$dir/dev.log" >&2
  return 2
}

stop_clusters() {
  local pid
  for pid in ${cluster_pids[@]+"${cluster_pids[@]}"}; do kill -INT "$pid" 2>/dev/null || true; done
  for pid in ${cluster_pids[@]+"${cluster_pids[@]}"}; do stop_cluster "$pid"; done
  cluster_pids=()
}
stop_cluster() { # PID
  for _ in $(seq 300); do
    kill -0 "$1" 2>/dev/null || return 0
    sleep 0.1
  done
  say "gantry dev ($1) did not stop within 30 s; ending it"
  kill -9 "$1" 2>/dev/null || true
}

# Whether there is a Java of version 17 or later, and Maven.
has_java() {
  has javac && has java && has mvn && [ "$(javac -version 2>&1 | sed 's/[^0-9]*\([0-9]*\).*/\1/')" -ge 17 ]
}

# Compiles a Maven project against one version of the RocketMQ artifacts.
build_java() { # PROJECT VERSION
  mvn -q -B -Dstyle.color=never -f "$root/compat/$1/pom.xml" -Drocketmq.version="$2" compile >&2
}

# The command that runs a class of such a project, words apart by blanks.
java_command() { # PROJECT VERSION CLASS
  local target=$root/compat/$1/target/$2
  echo "java ${kills:+-Dcompat.kills=$kills} -Xmx320m -XX:+UseSerialGC -Duser.home=$work -Djava.io.tmpdir=$work -Drocketmq.client.logRoot=$work/logs -Drocketmq.client.localOffsetStoreDir=$work/offsets" \
    "-cp $target/classes:$target/lib/* gantry.compat.$3"
}
