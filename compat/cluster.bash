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

# Starts `gantry dev ARGS…` and waits until it says that it runs; sets cluster_pid and namesrv. Without a base port it
# takes one below those that the kernel hands out, and another if something listens there.
start_cluster() { # BIN BASE_PORT ARGS…
  local binary=$1 base_port=$2 tries=1 port; shift 2
  [ -n "$base_port" ] || tries=5
  while [ $tries -gt 0 ]; do
    tries=$((tries - 1))
    port=${base_port:-$((12000 + RANDOM % 180 * 100))}
    # Of a try before, which would not let this one have other ports.
    rm -rf "$work/data"
    "$binary" dev --json --base-port "$port" "$@" >"$work/dev.json" 2>"$work/dev.log" </dev/null &
    cluster_pid=$!
    for _ in $(seq 300); do
      namesrv=$(grep -o '"namesrv": *"[^"]*"' "$work/dev.json" | head -n 1 | sed 's/.*: *"//; s/"$//' || true)
      [ -n "$namesrv" ] && return
      if ! kill -0 "$cluster_pid" 2>/dev/null; then break; fi
      sleep 0.1
    done
    grep -q 'is in use' "$work/dev.log" || break
  done
  say "gantry dev did not come up; it said:"
  cat "$work/dev.log" >&2
  return 2
}

stop_cluster() {
  [ -n "${cluster_pid:-}" ] || return 0
  kill -INT "$cluster_pid" 2>/dev/null || true
  for _ in $(seq 300); do
    kill -0 "$cluster_pid" 2>/dev/null || { cluster_pid=; return 0; }
    sleep 0.1
  done
  say "gantry dev ($cluster_pid) did not stop within 30 s; ending it"
  kill -9 "$cluster_pid" 2>/dev/null || true
  cluster_pid=
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
  echo "java ${kills:+-Dcompat.kills=$kills} -Xmx256m -XX:+UseSerialGC -Duser.home=$work -Djava.io.tmpdir=$work -Drocketmq.client.logRoot=$work/logs -Drocketmq.client.localOffsetStoreDir=$work/offsets" \
    "-cp $target/classes:$target/lib/* gantry.compat.$3"
}
