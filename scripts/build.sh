#!/usr/bin/env bash
# Configures a preset of CMakePresets.json and builds targets of it into build/PRESET.
#
#   scripts/build.sh PRESET [TARGET...] [-- CMAKE_OPTION...]
#
# Without a target it builds everything. Ninja where it is there, ccache where it is there, as many jobs as cores and
# memory allow (DELTRON_JOBS=N overrides). Example: scripts/build.sh release deltron -- -DDELTRON_CUDA=OFF
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

[[ "${1:-}" == -h || "${1:-}" == --help ]] && { usage_from_header "$0"; exit 0; }
(($#)) || die 2 'build.sh: name a preset, for example: scripts/build.sh release deltron'
preset=$1
shift
targets=() options=()
while (($#)); do
  if [[ $1 == -- ]]; then
    shift
    options=("$@")
    break
  fi
  targets+=("$1")
  shift
done
cd "$deltron_root"
folder=build/$preset

# One compile job needs up to 1 GiB; a container's limit counts where it is lower than the machine's free memory.
job_count() {
  local cores memory limit
  cores=$(nproc)
  memory=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) }' /proc/meminfo)
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [[ $limit =~ ^[0-9]+$ ]] && ((limit / 1048576 < memory)); then memory=$((limit / 1048576)); fi
  local jobs=$((memory / 1024))
  ((jobs > cores)) && jobs=$cores
  ((jobs < 1)) && jobs=1
  echo "$jobs"
}
jobs=${DELTRON_JOBS:-$(job_count)}

if ! command -v ninja >/dev/null && [[ ! -f $folder/CMakeCache.txt ]]; then
  options=(-G 'Unix Makefiles' "${options[@]}")
fi
if command -v ccache >/dev/null; then
  export CCACHE_BASEDIR=$deltron_root CCACHE_NOHASHDIR=1  # hits in a clone elsewhere as well
  options=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache "${options[@]}")
fi

cmake --preset "$preset" --no-warn-unused-cli "${options[@]}"
echo "building ${targets[*]:-everything} in $folder with $jobs jobs"
cmake --build "$folder" -j "$jobs" ${targets[@]+--target "${targets[@]}"}
