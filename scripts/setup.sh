#!/usr/bin/env bash
# Finds what Deltron needs, installs what is missing through apt, and prints one table of it all.
#
#   scripts/setup.sh [--tests] [--sanitize] [--check]
#     --tests      also what only the tests need (GoogleTest)
#     --sanitize   also what only the fuzzers need (clang 14 with its run-time library)
#     --check      install nothing, only report
#
# Debian 12 and Ubuntu 24.04. Safe to run again: without anything missing it neither installs nor needs a network.
# Exit code 0 only if everything required is there. Libraries elsewhere: CMAKE_PREFIX_PATH=/one:/two scripts/setup.sh
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

with_tests=0 with_sanitize=0 check_only=0
while (($#)); do
  case $1 in
    --tests) with_tests=1 ;;
    --sanitize) with_sanitize=1 ;;
    --check) check_only=1 ;;
    -h | --help) usage_from_header "$0"; exit 0 ;;
    *) die 2 "setup.sh: unknown option '$1'; known: --tests, --sanitize, --check" ;;
  esac
  shift
done

# --- where things are looked for
triplet=$(uname -m)-linux-gnu
prefixes=()
IFS=: read -r -a given_prefixes <<<"${CMAKE_PREFIX_PATH:-}"
for folder in "${given_prefixes[@]}" /usr/local /usr; do
  [[ -n $folder ]] && prefixes+=("$folder")
done
include_folders=() library_folders=()
for folder in "${prefixes[@]}"; do
  include_folders+=("$folder/include" "$folder/include/$triplet")
  library_folders+=("$folder/lib/$triplet" "$folder/lib" "$folder/lib64")
done
cuda_folders=("${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda /usr)

# first_file NAME... -- FOLDER...: prints the first FOLDER/NAME that exists, or fails.
first_file() {
  local names=() name folder
  while [[ $1 != -- ]]; do names+=("$1"); shift; done
  shift
  for folder in "$@"; do
    for name in "${names[@]}"; do
      if [[ -e $folder/$name ]]; then echo "$folder/$name"; return 0; fi
    done
  done
  return 1
}

# found PROBE: is what one probe asks for there? Probes: command:NAME, header:PATH, library:NAME[|NAME].
found() {
  local what=${1#*:} names
  case $1 in
    command:*) command -v "$what" >/dev/null ;;
    header:*) first_file "$what" -- "${include_folders[@]}" >/dev/null ;;
    library:*)
      IFS='|' read -r -a names <<<"$what"
      first_file "${names[@]}" -- "${library_folders[@]}" >/dev/null
      ;;
  esac
}

# searched PROBE: where that probe looked, for the line below a cross.
searched() {
  case $1 in
    command:*) echo "PATH for ${1#*:}" ;;
    header:*) echo "${1#*:} in ${include_folders[*]}" ;;
    library:*) echo "${1#*:} in ${library_folders[*]}" ;;
  esac
}

# --- what is needed: title | package | lowest version or '-' | probes | how to point to it
required=(
  "g++|g++|12|command:g++|put g++ 12 or newer first in PATH"
  "CMake|cmake|3.25|command:cmake|put cmake 3.25 or newer first in PATH"
  "Ninja|ninja-build|-|command:ninja|put ninja in PATH"
  "ccache|ccache|-|command:ccache|put ccache in PATH"
  "yaml-cpp|libyaml-cpp-dev|-|header:yaml-cpp/yaml.h library:libyaml-cpp.a|libyaml-cpp.so|CMAKE_PREFIX_PATH, or cmake -Dyaml-cpp_DIR=..."
  "CLI11|libcli11-dev|-|header:CLI/CLI.hpp|CMAKE_PREFIX_PATH, or cmake -DCLI11_DIR=..."
  "spdlog|libspdlog-dev|-|header:spdlog/spdlog.h|CMAKE_PREFIX_PATH, or cmake -Dspdlog_DIR=..."
  "fmt|libfmt-dev|-|header:fmt/format.h|CMAKE_PREFIX_PATH, or cmake -Dfmt_DIR=..."
  "nlohmann-json|nlohmann-json3-dev|-|header:nlohmann/json.hpp|CMAKE_PREFIX_PATH, or cmake -Dnlohmann_json_DIR=..."
  "xxHash|libxxhash-dev|-|header:xxhash.h|cmake -DDELTRON_XXHASH_INCLUDE=..."
  "Highway|libhwy-dev|-|header:hwy/highway.h library:libhwy.a|libhwy.so|cmake -DDELTRON_HWY_INCLUDE=... -DDELTRON_HWY_LIBRARY=..."
  "BLIS (serial)|libblis-serial-dev|-|header:blis-serial/blis.h library:blis-serial/libblis.a|cmake -DDELTRON_BLIS_INCLUDE=... -DDELTRON_BLIS_LIBRARY=..."
  "Gloo|libgloo-dev|-|header:gloo/config.h library:libgloo.a|libgloo.so|cmake -DDELTRON_GLOO_INCLUDE=... -DDELTRON_GLOO_LIBRARY=..."
  "KJV text|bible-kjv|-|command:bible|put Debian's bible program in PATH"
  "gzip|gzip|-|command:gzip|put gzip in PATH"
  "bzip2|bzip2|-|command:bzip2|put bzip2 in PATH"
)
if ((with_tests)); then
  required+=(
    "GoogleTest|libgtest-dev|-|header:gtest/gtest.h library:libgtest.a|libgtest.so|CMAKE_PREFIX_PATH, or cmake -DGTest_DIR=..."
    "iproute2|iproute2|-|command:ip|put ip in PATH"
    "Open MPI|openmpi-bin|-|command:mpirun|put mpirun in PATH"
    "GoogleMock|libgmock-dev|-|header:gmock/gmock.h library:libgmock.a|libgmock.so|CMAKE_PREFIX_PATH, or cmake -DGTest_DIR=..."
  )
fi
if ((with_sanitize)); then
  required+=(
    "clang 14|clang-14|-|command:clang++-14|put clang++-14 in PATH"
    "clang run time|libclang-rt-14-dev|-|library:llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.fuzzer-x86_64.a|llvm-14/lib/clang/14.0.0/lib/linux/libclang_rt.fuzzer-x86_64.a|install the run-time library of your clang"
  )
fi

# split_row ROW: sets title, package, lowest, probes and hint. A probe's own '|' stays with it.
split_row() {
  title=${1%%|*}
  local rest=${1#*|}
  package=${rest%%|*}
  rest=${rest#*|}
  lowest=${rest%%|*}
  rest=${rest#*|}
  hint=${rest##*|}
  IFS=' ' read -r -a probes <<<"${rest%|*}"
}

# version_of PACKAGE: of the command where the command decides, otherwise as dpkg knows it ("found" if it came without dpkg).
version_of() {
  local version=
  case $1 in
    g++) version=$(g++ -dumpfullversion 2>/dev/null) ;;
    cmake) version=$(cmake --version 2>/dev/null | sed -n '1s/.* //p') ;;
    ccache) version=$(ccache --version 2>/dev/null | sed -n '1s/.* //p') ;;
    *) version=$(dpkg-query -f '${Version}' -W "$1" 2>/dev/null | sed 's/^[0-9]*://; s/[-+].*//') ;;
  esac
  echo "${version:-found}"
}

# at_least VERSION LOWEST
at_least() { [[ $2 == - || $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

# complaint ROW: prints what is wrong with it; nothing if it is there and new enough.
complaint() {
  local probe
  split_row "$1"
  for probe in "${probes[@]}"; do
    found "$probe" || { echo "searched $(searched "$probe")"; return; }
  done
  at_least "$(version_of "$package")" "$lowest" || echo "version $(version_of "$package") is older than $lowest"
}

# --- install what is missing
missing=() damaged=()
for row in "${required[@]}"; do
  [[ -z $(complaint "$row") ]] && continue
  split_row "$row"
  if [[ $(dpkg-query -f '${db:Status-Status}' -W "$package" 2>/dev/null) == installed ]]; then
    damaged+=("$package")  # dpkg believes in it, yet its files are not there
  else
    missing+=("$package")
  fi
done

if ((${#missing[@]} + ${#damaged[@]} > 0 && !check_only)); then
  if ! command -v apt-get >/dev/null; then
    echo "apt-get is not here, so nothing can be installed. Missing, by Debian's names: ${missing[*]} ${damaged[*]}"
  else
    as_root=(env)
    if [[ $(id -u) != 0 ]]; then
      command -v sudo >/dev/null || die 1 "not root and no sudo; as root run: apt-get install ${missing[*]} ${damaged[*]}"
      as_root=(sudo)
      [[ -t 0 ]] || as_root=(sudo -n)  # nobody there to type a password
      echo "You are not root: sudo runs the apt-get commands below."
    fi
    as_root+=(DEBIAN_FRONTEND=noninteractive)
    wanted=("${missing[@]}" "${damaged[@]}")
    echo "Installing through apt: ${wanted[*]}"
    log=$(mktemp)
    # apt COMMAND...: quiet unless it fails
    apt() { "${as_root[@]}" apt-get -qq "$@" </dev/null >"$log" 2>&1 || { cat "$log"; echo "apt-get $1 failed; the table below says what is missing"; }; }
    options=(-y --no-install-recommends -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold)
    apt update
    if ((${#missing[@]})); then apt install "${options[@]}" "${missing[@]}"; fi
    if ((${#damaged[@]})); then apt install --reinstall "${options[@]}" "${damaged[@]}"; fi
    rm -f "$log"
    hash -r
  fi
fi

# --- the headers of cuDNN's front end: where cuDNN's own are, out of its Python package, checked; the build takes them from .cache
cuda_includes=("${cuda_folders[@]/%//include}" "/usr/include/$triplet" /usr/local/include)
cudnn=$(first_file cudnn_version.h -- "${cuda_includes[@]}" || true)
frontend_version=1.32.0
frontend_sha256=c6006556017a4d1c914c52a556c71b1267f2d6a0500f742e7b4edef539878df0
frontend_folder=$deltron_root/.cache/cudnn-frontend
frontend_problem=
# fetch_frontend: the same wheel on every machine, of which only headers and licences are kept. Prints why it failed.
fetch_frontend() {
  local work wheel
  python3 -m pip --version >/dev/null 2>&1 || { echo 'python3 has no pip'; return; }
  work=$(mktemp -d)
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 --implementation cp --abi cp311 \
    --platform manylinux_2_28_x86_64 --dest "$work" "nvidia-cudnn-frontend==$frontend_version" >"$work/log" 2>&1; then
    echo "pip download failed: $(tail -n 1 "$work/log")"
  else
    wheel=$(first_file "$(cd "$work" && echo *.whl)" -- "$work")
    if [[ $(sha256sum "$wheel" | cut -d ' ' -f 1) != "$frontend_sha256" ]]; then
      echo 'the package is not the one that is expected (SHA-256)'
    elif ! python3 -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.startswith("include/") or ".dist-info/licenses/" in n])' "$wheel" "$work/out"; then
      echo 'the package cannot be unpacked'
    else
      mv "$work"/out/*.dist-info/licenses "$work/out/licenses"
      rm -rf "$work"/out/*.dist-info
      echo "$frontend_version" >"$work/out/version"
      mkdir -p "$(dirname "$frontend_folder")"
      rm -rf "$frontend_folder"
      mv "$work/out" "$frontend_folder"
    fi
  fi
  rm -rf "$work"
}
frontend_found() { cat "$frontend_folder/version" 2>/dev/null || true; }
if [[ -n $cudnn && $(frontend_found) != "$frontend_version" ]] && ((!check_only)); then frontend_problem=$(fetch_frontend); fi

# --- the table
print_line() { printf '  %s%s%s %-16s %-12s %s\n' "$1" "$2" "$colour_off" "$3" "$4" "$5"; }
failures=0
printf '  %-2s %-16s %-12s %s\n' '' dependency version package
for row in "${required[@]}"; do
  problem=$(complaint "$row")
  split_row "$row"
  if [[ -z $problem ]]; then
    print_line "$colour_good" "$sign_yes" "$title" "$(version_of "$package")" "$package"
  else
    failures=$((failures + 1))
    state=missing
    [[ $problem == version* ]] && state='too old'
    print_line "$colour_bad" "$sign_no" "$title" "$state" "$package"
    printf '       %s\n       point to it: %s\n' "$problem" "$hint"
  fi
done

# optional TITLE VERSION_OR_EMPTY NOTE
optional() {
  if [[ -n $2 ]]; then print_line "$colour_good" "$sign_yes" "$1" "$2" "optional: $3"; else print_line '' "$sign_none" "$1" none "optional: $3"; fi
}
# header_version FILE MACRO...: the macros' values joined by dots.
header_version() {
  local file=$1 macro parts=()
  shift
  for macro in "$@"; do parts+=("$(awk -v name="$macro" '$1 == "#define" && $2 == name { print $3; exit }' "$file")"); done
  (IFS=. && echo "${parts[*]}")
}
nvcc=$(command -v "${CUDACXX:-nvcc}" || first_file bin/nvcc -- "${cuda_folders[@]}" || true)
optional 'CUDA toolkit' "${nvcc:+$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')}" 'GPU back end; searched CUDACXX, PATH, CUDA_HOME, /usr/local/cuda'
nccl=$(first_file nccl.h -- "${cuda_includes[@]}" || true)
optional NCCL "${nccl:+$(header_version "$nccl" NCCL_MAJOR NCCL_MINOR NCCL_PATCH)}" 'several GPUs'
optional cuDNN "${cudnn:+$(header_version "$cudnn" CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)}" 'fused attention on the GPU; its headers'
frontend_note='fused attention on the GPU; headers'
[[ -z $cudnn ]] && frontend_note+=', fetched where cuDNN is'
[[ -n $frontend_problem ]] && frontend_note+="; $frontend_problem: our own kernels remain"
optional 'cuDNN front end' "$(frontend_found)" "$frontend_note"
gpu=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sort -u | head -n 1 || true)
optional 'GPU driver' "$gpu" 'running on a GPU; asked nvidia-smi'
((with_sanitize)) || optional 'clang 14' "$(dpkg-query -f '${Version}' -W clang-14 2>/dev/null | sed 's/^[0-9]*://; s/[-+].*//' || true)" 'fuzzers; scripts/sanitize.sh --install'

if ((failures)); then
  printf '%s%d required %s missing%s\n' "$colour_bad" "$failures" "$( ((failures == 1)) && echo 'dependency is' || echo 'dependencies are')" "$colour_off"
  exit 1
fi
echo 'everything required is there'
