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

    verify_fp32) "$(binary deltron)" verify tests/golden --device cuda ;;
    verify_bf16) "$(binary deltron)" verify tests/golden --device cuda --dtype bf16 ;;
    verify_fp16) "$(binary deltron)" verify tests/golden --device cuda --dtype fp16 ;;
    train) train_small "$output/run_first" ;;
    train_again) # two runs, the same bits
      train_small "$output/run_one" | grep safetensors >"$output/one.sha" && train_small "$output/run_two" | grep safetensors >"$output/two.sha" &&
        cat "$output/one.sha" && cmp "$output/one.sha" "$output/two.sha" ;;
    bench_step) "$(binary deltron)" bench step -c configs/kjv_tiny.yaml training.device=cuda training.bf16=true --steps 10 ;;
    memcheck_streaming | racecheck_streaming) sanitized "${part%_*}" test_kernels_cuda "$streaming_tests" ;;
    memcheck_products | racecheck_products) sanitized "${part%_*}" test_kernels_cuda "$product_tests" ;;
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
