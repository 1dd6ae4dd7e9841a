#!/usr/bin/env bash
# Checks the CUDA back end on a GPU, part by part; resumable: a part that has passed for a commit is not run again for it.
#
#   scripts/gpu_check.sh [--only PART,...] [--list] [--force] [--build FOLDER] [--binaries FOLDER] [--output FOLDER] [--jobs N]
#
# --build     build folder to take the binaries from (default build/release); --binaries takes them from one flat folder instead, where
#             they were built on another machine
# --output    where one JSON record a part and commit, and its log, are kept (default build/gpu_check)
# --jobs      parts that may run side by side (default 1)
# A part that cannot run (no GPU, no compute-sanitizer) is recorded as such, never as passed. The table comes last.
# Exit code 0 only if every wanted part has passed for this commit.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

build=build/release binaries='' output=build/gpu_check only='' force=0 list=0 jobs=1
while (($#)); do
  case $1 in
    --only) need_value "$1" $#; only=$2; shift ;;
    --build) need_value "$1" $#; build=$2; shift ;;
    --binaries) need_value "$1" $#; binaries=$2; shift ;;
    --output) need_value "$1" $#; output=$2; shift ;;
    --jobs) need_value "$1" $#; jobs=$2; shift ;;
    --force) force=1 ;;
    --list) list=1 ;;
    -h | --help) usage_from_header "$0"; exit 0 ;;
    *) die 2 "unknown option $1; --help lists the options" ;;
  esac
  shift
done
cd "$deltron_root"

all_parts=(doctor kernels_aligned kernels_unaligned rules attention stack verify_fp32 verify_bf16 verify_fp16 train train_again bench_step memcheck racecheck)
if ((list)); then
  printf '%s\n' "${all_parts[@]}"
  exit 0
fi
parts=("${all_parts[@]}")
if [[ -n $only ]]; then
  IFS=, read -r -a parts <<<"$only"
  for part in "${parts[@]}"; do
    [[ " ${all_parts[*]} " == *" $part "* ]] || die 2 "no part '$part'; --list names them"
  done
fi

# binary NAME: its path.
binary() {
  if [[ -n $binaries ]]; then
    echo "$binaries/$1"
    return
  fi
  case $1 in
    deltron) echo "$build/deltron" ;;
    test_gpu) echo "$build/tests/gpu/$1" ;;
    *) echo "$build/tests/kernels/$1" ;;
  esac
}
for name in deltron test_kernels_cuda test_kernels_cuda_rules test_attention_cudnn test_gpu; do
  [[ -x $(binary "$name") ]] || die 2 "$(binary "$name") is missing: build the preset 'release' where nvcc is installed"
done
mkdir -p "$output"
commit=$("$(binary deltron)" doctor --fast --json | sed -n 's/.*"commit": "\(.*\)",/\1/p')
[[ -n $commit ]] || die 8 "deltron doctor names no commit"
export DELTRON_REQUIRE_GPU=1 DELTRON_GOLDEN=$deltron_root/tests/golden

# A few steps of a small hybrid in bf16, everything on; prints the hashes of its weights.
train_small() {
  local run=$1
  rm -rf "$run"
  "$(binary deltron)" train -c configs/mqar_tiny.yaml training.device=cuda training.bf16=true training.train_iters=60 checkpoint.save="$run" \
    checkpoint.save_interval=60 optimizer.lr_warmup_iters=10 logging.log_interval=10
  (cd "$run/checkpoints" && sha256sum -- */*.safetensors)
}

run_part() {
  local part=$1
  case $part in
    doctor) "$(binary deltron)" doctor && "$(binary deltron)" doctor --fast | tail -n 1 | grep -q 'ready: training.device cpu and cuda' ;;
    kernels_aligned) DELTRON_TEST_ALIGNED=1 "$(binary test_kernels_cuda)" --gtest_brief=1 ;;
    kernels_unaligned) "$(binary test_kernels_cuda)" --gtest_brief=1 ;;
    rules) "$(binary test_kernels_cuda_rules)" --gtest_brief=1 ;;
    attention) # cuDNN's; without cuDNN it could not run
      "$(binary deltron)" doctor --fast | grep -q '^cudnn *[0-9]' || return 77
      "$(binary test_attention_cudnn)" --gtest_brief=1 ;;
    stack) "$(binary test_gpu)" --gtest_brief=1 ;;
    verify_fp32) "$(binary deltron)" verify tests/golden --device cuda ;;
    verify_bf16) "$(binary deltron)" verify tests/golden --device cuda --dtype bf16 ;;
    verify_fp16) "$(binary deltron)" verify tests/golden --device cuda --dtype fp16 ;;
    train) train_small "$output/run_first" ;;
    train_again) # two runs, the same bits
      train_small "$output/run_one" | grep safetensors >"$output/one.sha" && train_small "$output/run_two" | grep safetensors >"$output/two.sha" &&
        cat "$output/one.sha" && cmp "$output/one.sha" "$output/two.sha" ;;
    bench_step) "$(binary deltron)" bench step -c configs/kjv_tiny.yaml training.device=cuda training.bf16=true --steps 10 ;;
    memcheck | racecheck)
      command -v compute-sanitizer >/dev/null || return 77
      compute-sanitizer --tool "$part" --error-exitcode 9 --print-limit 5 "$(binary test_kernels_cuda)" --gtest_brief=1 \
        '--gtest_filter=*Norm*:*Conv*:*CrossEntropy*:*Embedding*:*Dropout*:*Swiglu*:*Rope*:*Reduce*:*PreRule*' ;;
  esac
}

record_of() { echo "$output/${commit%+}.$1.json"; }
passed() { [[ -f $(record_of "$1") ]] && grep -q '"result": "passed"' "$(record_of "$1")" && [[ $commit != *+ ]]; }

check_part() {
  local part=$1 started code=0 result
  started=$(date +%s)
  (set +e; run_part "$part") >"$output/$part.log" 2>&1 || code=$?
  case $code in 0) result=passed ;; 77) result='could not run' ;; *) result=failed ;; esac
  printf '{"part": "%s", "commit": "%s", "result": "%s", "exit_code": %d, "seconds": %d, "date": "%s"}\n' "$part" "$commit" "$result" "$code" \
    $(($(date +%s) - started)) "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >"$(record_of "$part")"
}

heading "parts for ${commit:0:12}"
running=0
for part in "${parts[@]}"; do
  if ((!force)) && passed "$part"; then continue; fi
  check_part "$part" &
  if ((++running >= jobs)); then
    wait -n || true
    ((running--)) || true
  fi
done
wait

heading 'table'
missing=0
for part in "${parts[@]}"; do
  result='did not run' seconds=''
  if [[ -f $(record_of "$part") ]]; then
    result=$(sed -n 's/.*"result": "\([^"]*\)".*/\1/p' "$(record_of "$part")")
    seconds=$(sed -n 's/.*"seconds": \([0-9]*\).*/\1/p' "$(record_of "$part")")
  fi
  [[ $result == passed ]] || missing=$((missing + 1))
  note=$(grep -aE 'FAILED|E[0-9]{3} |passed, |tokens per second|ERROR SUMMARY|RACECHECK SUMMARY|PASSED' "$output/$part.log" 2>/dev/null | tail -n 1 | cut -c1-80 || true)
  printf '%-18s %-14s %5s s  %s\n' "$part" "$result" "${seconds:--}" "$note"
done
printf '%s of %s passed for %s\n' $((${#parts[@]} - missing)) "${#parts[@]}" "$commit"
exit $((missing > 0))
