#!/usr/bin/env bash
# Checks the CUDA back end on a GPU, part by part; resumable: a part that has passed for a commit is not run again for it.
#
#   scripts/gpu_check.sh [--only PART,...] [--skip PART,...] [--list] [--force] [--build FOLDER] [--binaries FOLDER] [--output FOLDER] [--jobs N]
#
# --build     build folder to take the binaries from (default build/release); --binaries takes them from one flat folder instead, where
#             they were built on another machine
# --output    where one JSON record a part and commit, and its log, are kept (default build/gpu_check)
# --jobs      parts that may run side by side (default 1)
# --skip      parts to leave out, as --only names those to run
#
#   doctor                               driver, device, libraries
#   kernels_aligned, kernels_unaligned   every kernel family against fp64 references; every buffer between NaN bytes that must stay
#   rules                                both delta rules: golden files, lengths packed together, strong decay, equal keys with beta near 2
#   rules_repeat                         forward and backward of both rules 1000 times, in bf16, fp16 and fp32: the same bits
#   attention                            cuDNN's fused attention against the references
#   large_streaming, large_products, large_rules   tensors of more than 2^31 elements (one after the other: up to 125 GiB)
#   documents_and_lengths                70,005 documents in a batch; sequences of 1 to 1,048,576 tokens, one pass against pieces
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

build=build/release binaries='' output=build/gpu_check only='' skip='' force=0 list=0 jobs=1
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
    -h | --help) usage_from_header "$0"; exit 0 ;;
    *) die 2 "unknown option $1; --help lists the options" ;;
  esac
  shift
done
cd "$deltron_root"

    rules) tests test_kernels_cuda_rules 'DeltaRuleGpu.*' ;;
    rules_repeat) DELTRON_REPEATS=1000 "$(binary test_kernels_cuda_rules)" '--gtest_filter=LargeRules.launches_repeat*' ;;
    large_streaming) tests test_kernels_cuda_rules 'LargeStreaming.*' ;;
    large_products) tests test_kernels_cuda_rules 'LargeLoss.*' ;;
    large_rules) tests test_kernels_cuda_rules 'LargeRules.*2_to_the_31*' ;;
    documents_and_lengths) tests test_kernels_cuda_rules 'LargeRules.*65535:LargeRules.*sequences*:ManyDocuments.*' ;;
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
