#!/usr/bin/env bash
# All unit tests under AddressSanitizer + UBSan and under ThreadSanitizer, and the fuzzers.
#
#   scripts/sanitize.sh [--install] [--asan] [--tsan] [--fuzz SECONDS] [--only NAME] [--label LABEL]
#     --install        first install what is missing (scripts/setup.sh --tests --sanitize)
#     --asan, --tsan   only these; without either and without --fuzz both run
#     --fuzz SECONDS   every tests/fuzz/fuzz_*.cpp for that long; inputs found are kept in tests/fuzz/corpus/NAME
#     --only NAME      only the fuzzer fuzz_NAME
#     --label LABEL    ctest label for the sanitizers (default unit)
#
# Build folders: build/asan, build/tsan, build/fuzz. Prints one line a part at the end; exit code 0 only if all are clean.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

install=0 parts=() fuzz_seconds=0 only='' label=unit
while (($#)); do
  case $1 in
    --install) install=1 ;;
    --asan | --tsan) parts+=("${1#--}") ;;
    --fuzz) need_value "$1" $#; fuzz_seconds=$2; shift ;;
    --only) need_value "$1" $#; only=${2#fuzz_}; shift ;;
    --label) need_value "$1" $#; label=$2; shift ;;
    -h | --help) usage_from_header "$0"; exit 0 ;;
    *) die 2 "sanitize.sh: unknown option '$1'; --help lists them" ;;
  esac
  shift
done
[[ $fuzz_seconds =~ ^[0-9]+$ ]] || die 2 "--fuzz takes whole seconds, not '$fuzz_seconds'"
if ((${#parts[@]} == 0 && fuzz_seconds == 0)); then parts=(asan tsan); fi
cd "$deltron_root"
if ((install)); then
  heading 'set-up'
  scripts/setup.sh --tests --sanitize
fi

export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:${ASAN_OPTIONS:-}
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:${UBSAN_OPTIONS:-}
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$deltron_root/scripts/tsan_suppressions.txt:${TSAN_OPTIONS:-}

# g++'s ThreadSanitizer refuses some address layouts of newer kernels ("unexpected memory mapping"): then without randomisation.
fixed_addresses=()
if [[ " ${parts[*]-} " == *' tsan '* ]]; then
  probe=$(mktemp -d)
  echo 'int main() { return 0; }' >"$probe/probe.cpp"
  g++ -fsanitize=thread -o "$probe/probe" "$probe/probe.cpp"
  for _ in 1 2 3 4 5 6 7 8; do
    "$probe/probe" >/dev/null 2>&1 || { fixed_addresses=(setarch "$(uname -m)" -R); break; }
  done
  rm -rf "$probe"
fi

summary=() failures=0
note() { # note OK TEXT
  if (($1)); then summary+=("$colour_good$sign_yes$colour_off $2"); else summary+=("$colour_bad$sign_no$colour_off $2"); failures=$((failures + 1)); fi
}

for part in ${parts[@]+"${parts[@]}"}; do
  heading "$part: build"
  # Test binaries list their tests while building, so the build runs them under the same rules.
  if ! "${fixed_addresses[@]}" scripts/build.sh "$part" -- -DDELTRON_TESTS=ON; then
    note 0 "$part: the build failed"
    continue
  fi
  heading "$part: tests"
  log=build/$part/sanitize.log
  code=0
  (deltron_ctest_prefix=("${fixed_addresses[@]}") && run_tests "build/$part" -L "^$label\$") | tee "$log" || code=$?
  note $((code == 0)) "$part: $(tail -n 1 "$log" | sed 's/\x1b\[[0-9;]*m//g')"
done

if ((fuzz_seconds)); then
  heading 'fuzzers: build'
  compiler=$(command -v clang++-14 || command -v clang++ || true)
  [[ -n $compiler ]] || die 1 'no clang++ in PATH; scripts/sanitize.sh --install installs clang 14'
  names=()
  for source in tests/fuzz/fuzz_*.cpp; do
    name=$(basename -- "$source" .cpp)
    if [[ -e $source && (-z $only || $name == "fuzz_$only") ]]; then names+=("$name"); fi
  done
  ((${#names[@]})) || die 2 "no fuzzer matches tests/fuzz/fuzz_${only:-*}.cpp"
  scripts/build.sh fuzz "${names[@]}" -- "-DCMAKE_CXX_COMPILER=$compiler"
  for name in "${names[@]}"; do
    heading "$name for $fuzz_seconds s"
    corpus=tests/fuzz/corpus/${name#fuzz_}
    log=build/fuzz/$name.log
    mkdir -p "$corpus" build/fuzz/new/"$name" build/fuzz/findings
    code=0
    # New inputs go to the first folder; only those that add coverage are merged into the kept corpus below.
    "build/fuzz/tests/fuzz/$name" "-max_total_time=$fuzz_seconds" -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
      "-artifact_prefix=build/fuzz/findings/$name-" build/fuzz/new/"$name" "$corpus" >"$log" 2>&1 || code=$?
    inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -n 1)
    if ((code)); then
      tail -n 40 "$log"
      note 0 "$name: a finding after ${inputs:-some} inputs; the input lies in build/fuzz/findings, the log in $log"
      continue
    fi
    "build/fuzz/tests/fuzz/$name" -merge=1 "$corpus" build/fuzz/new/"$name" >>"$log" 2>&1 || true
    note 1 "$name: clean, ${inputs:-0} inputs in $fuzz_seconds s, corpus of $(find "$corpus" -type f | wc -l)"
  done
fi

heading 'summary'
printf '%s\n' "${summary[@]}"
exit $((failures > 0))
