#!/usr/bin/env bash
# Checks the CUDA back end on a GPU, part by part; resumable: a part that has passed for a commit is not run again for it.
#
#   scripts/gpu_check.sh [--only PART,...] [--skip PART,...] [--list] [--table] [--force] [--build FOLDER] [--binaries FOLDER] [--output FOLDER] [--jobs N]
#
# --build     build folder to take the binaries from (default build/release); --binaries takes them from one flat folder instead, where
#             they were built on another machine
# --output    where one JSON record a part and commit, and its log, are kept (default build/gpu_check)
# --jobs      parts that may run side by side (default 1)
# --skip      parts to leave out, as --only names those to run
# --table     runs nothing: the table of what is recorded
#
#   doctor                               driver, device, libraries
#   kernels_aligned, kernels_unaligned   every kernel family against fp64 references; every buffer between NaN bytes that must stay
#   rules                                both delta rules: golden files, lengths packed together, strong decay, equal keys with beta near 2
#   rules_repeat                         forward and backward of both rules 1000 times, in bf16, fp16 and fp32: the same bits
#   attention                            cuDNN's fused attention against the references
#   large_streaming, large_products, large_rules   tensors of more than 2^31 elements (one after the other: up to 125 GiB)
#   documents_and_lengths                70,005 documents in a batch; sequences of 1 to 1,048,576 tokens, one pass against pieces
#   length_generic                       the same length by the generic kernels, token by token
#   stack                                device, model against the CPU, training, host waits in a step, offload in the layers
#   exactness_fp32, exactness_bf16       recompute regions x offload x fusions for gdn and gdn2: bitwise, slow copies, poisoned memory
#   exactness_recompute, exactness_sets  every legal set of regions; every set that the combination table allows
#   verify_fp32, verify_bf16, verify_fp16   golden files, with the kernel that ran
#   memory_table                         `deltron memory-table` on the GPU: the bytes of the CPU's
#   train, train_again                   a small run; two more with the same bits
#   offload_curve                        200 steps with gdn_qkv offloaded: losses and weights of the run without, bitwise
#   loss_curve                           200 steps from one checkpoint, fp32 on the CPU against bf16 here: scripts/loss_curve.sh
#   bench_step                           a timed step
#   memcheck_*, racecheck_*              compute-sanitizer over every kernel family at small shapes
# A part that cannot run (no GPU, no compute-sanitizer) is recorded as such, never as passed. The table comes last.
# Exit code 0 only if every wanted part has passed for this commit.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

build=build/release binaries='' output=build/gpu_check only='' skip='' force=0 list=0 table=0 jobs=1
while (($#)); do
  case $1 in
    --only) need_value "$1" $#; only=$2; shift ;;
    --skip) need_value "$1" $#; skip=$2; shift ;;
    --build) need_value "$1" $#; build=$2; shift ;;
    --binaries) need_value "$1" $#; binaries=$2; shift ;;
    --output) need_value "$1" $#; output=$2; shift ;;
    --jobs) need_value "$1" $#; jobs=$2; shift ;;
    --force) force=1 ;;
    --list) list=1 ;;
    --table) table=1 ;;
    -h | --help) usage_from_header "$0"; exit 0 ;;
    *) die 2 "unknown option $1; --help lists the options" ;;
  esac
  shift
done
cd "$deltron_root"

# Long ones first, so that they do not end alone.
all_parts=(doctor large_rules exactness_bf16 exactness_fp32 racecheck_rules memcheck_rules racecheck_streaming memcheck_streaming racecheck_products
  memcheck_products exactness_sets exactness_recompute documents_and_lengths length_generic loss_curve large_streaming large_products kernels_aligned kernels_unaligned rules
  rules_repeat attention stack memory_table offload_curve verify_fp32 verify_bf16 verify_fp16 train train_again bench_step)
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
if [[ -n $skip ]]; then
  kept=()
  for part in "${parts[@]}"; do [[ ",$skip," == *",$part,"* ]] || kept+=("$part"); done
  parts=("${kept[@]}")
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

# tests BINARY FILTER: one process. A filter that matches nothing is a failure.
tests() {
  local output_of_tests code=0
  output_of_tests=$("$(binary "$1")" --gtest_brief=1 "--gtest_filter=$2" 2>&1) || code=$?
  echo "$output_of_tests"
  ((code == 0)) && grep -qE '^\[  PASSED  \] [1-9]' <<<"$output_of_tests"
}
# sharded N BINARY FILTER: the same in N processes side by side.
sharded() {
  local shards=$1 failed=0 pids=() i pid
  shift
  for ((i = 0; i < shards; i++)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i tests "$@" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  return $failed
}
# sanitized TOOL BINARY FILTER [N]: in N processes side by side (default 1). A warning counts as an error.
sanitized() {
  command -v compute-sanitizer >/dev/null || return 77
  local shards=${4:-1} failed=0 pids=() i pid
  for ((i = 0; i < shards; i++)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 "$(binary "$2")" \
      --gtest_brief=1 "--gtest_filter=$3" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  return $failed
}
streaming_tests='*Norm*:*Conv*:*CrossEntropy*:*Embedding*:*Dropout*:*Swiglu*:*Rope*:*Reduce*:*Sum*:*Clip*:*Elementwise*:*PreRule*:*MultiTensor*-*ten_thousand*'
product_tests='*ttention*:*Matmul*'
rule_tests='DeltaRuleGpu.*misaligned*:DeltaRuleGpu.*packed_document*:DeltaRuleGpu.*first_decay*'

# kjv_steps RUN OPTION...: 200 steps on the King James Bible in bf16; prints every loss and the weights' hashes.
kjv_steps() {
  local run=$1
  shift
  rm -rf "$run"
  "$(binary deltron)" train -c configs/kjv_tiny.yaml training.device=cuda training.bf16=true training.exit_interval=200 training.eval_interval=100000 \
    training.eval_iters=1 checkpoint.save="$run" checkpoint.save_interval=0 logging.log_interval=1 "$@" >&2 || [[ $? == 75 ]]
  grep -o '"event":"train","step":[0-9]*\|"loss":[^,]*\|"grad_norm":[^,]*' "$run/metrics.jsonl"
  (cd "$run/checkpoints" && sha256sum -- */*.safetensors)
}

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
    rules) tests test_kernels_cuda_rules 'DeltaRuleGpu.*' ;;
    rules_repeat) DELTRON_REPEATS=1000 "$(binary test_kernels_cuda_rules)" '--gtest_filter=LargeRules.launches_repeat*' ;;
    large_streaming) tests test_kernels_cuda_rules 'LargeStreaming.*' ;;
    large_products) tests test_kernels_cuda_rules 'LargeLoss.*' ;;
    large_rules) tests test_kernels_cuda_rules 'LargeRules.*2_to_the_31*' ;;
    documents_and_lengths) tests test_kernels_cuda_rules 'LargeRules.*65535:LargeRules.*sequences*:ManyDocuments.*' ;;
    length_generic) tests test_kernels_cuda_rules 'LargeRules.generic*' ;;
    attention) # cuDNN's; without cuDNN it could not run
      "$(binary deltron)" doctor --fast | grep -q '^cudnn *[0-9]' || return 77
      "$(binary test_attention_cudnn)" --gtest_brief=1 ;;
    stack) sharded 2 test_gpu '-*OffloadMatrix*:*OffloadCombinations*:*RecomputeExactness*' ;;
    exactness_fp32) sharded 4 test_gpu '*OffloadMatrix*fp32*' ;;
    exactness_bf16) sharded 4 test_gpu '*OffloadMatrix*bf16*' ;;
    exactness_recompute) sharded 4 test_gpu '*RecomputeExactness*' ;;
    exactness_sets) sharded 4 test_gpu '*OffloadCombinations*' ;;
    memory_table)
      for device in cpu cuda; do
        "$(binary deltron)" memory-table --seq-length 1024 --device "$device" --json | grep -v '"device":' >"$output/memory_table.$device.json" || return
      done
      wc -l "$output"/memory_table.*.json && cmp "$output/memory_table.cpu.json" "$output/memory_table.cuda.json" ;;
    offload_curve)
      [[ -f data/kjv/kjv.bin ]] || return 77
      kjv_steps "$output/run_kept" >"$output/kept.txt" &&
        kjv_steps "$output/run_offloaded" offload.fine_grained_activation_offloading=true 'offload.offload_modules=[gdn_qkv]' >"$output/offloaded.txt" &&
        (($(grep -c '"step"' "$output/kept.txt") == 200)) && tail -n 4 "$output/kept.txt" && cmp "$output/kept.txt" "$output/offloaded.txt" &&
        echo '200 steps with gdn_qkv offloaded: the same losses, gradient norms and weights' ;;
    loss_curve)
      [[ -f data/kjv/kjv.bin ]] || return 77
      scripts/loss_curve.sh --deltron "$(binary deltron)" --output "$output/loss_curve" ;;
    verify_fp32) "$(binary deltron)" verify tests/golden --device cuda ;;
    verify_bf16) "$(binary deltron)" verify tests/golden --device cuda --dtype bf16 ;;
    verify_fp16) "$(binary deltron)" verify tests/golden --device cuda --dtype fp16 ;;
    train) train_small "$output/run_first" ;;
    train_again) # two runs, the same bits
      train_small "$output/run_one" | grep safetensors >"$output/one.sha" && train_small "$output/run_two" | grep safetensors >"$output/two.sha" &&
        cat "$output/one.sha" && cmp "$output/one.sha" "$output/two.sha" ;;
    bench_step) "$(binary deltron)" bench step -c configs/kjv_tiny.yaml training.device=cuda training.bf16=true --steps 10 ;;
    memcheck_streaming | racecheck_streaming) sanitized "${part%_*}" test_kernels_cuda "$streaming_tests" ;;
    memcheck_products | racecheck_products) sanitized "${part%_*}" test_kernels_cuda "$product_tests" 6 ;;
    memcheck_rules | racecheck_rules) sanitized "${part%_*}" test_kernels_cuda_rules "$rule_tests" ;;
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

# Those that may want most of the GPU's memory wait for each other.
checked_alone() {
  case $1 in
    large_*) (flock 9; check_part "$1") 9>"$output/large.lock" ;;
    *) check_part "$1" ;;
  esac
}

heading "parts for ${commit:0:12}"
running=0
for part in "${parts[@]}"; do
  ((table)) && break
  if ((!force)) && passed "$part"; then continue; fi
  checked_alone "$part" &
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
  note=$(grep -aE 'FAILED|E[0-9]{3} |passed, |tokens per second|ERROR SUMMARY|RACECHECK SUMMARY|PASSED|worst |the same losses|differ' "$output/$part.log" 2>/dev/null | tail -n 1 | cut -c1-80 || true)
  printf '%-21s %-14s %5s s  %s\n' "$part" "$result" "${seconds:--}" "$note"
done
printf '%s of %s passed for %s\n' $((${#parts[@]} - missing)) "${#parts[@]}" "$commit"
exit $((missing > 0))
