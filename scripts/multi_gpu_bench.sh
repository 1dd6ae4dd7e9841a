#!/usr/bin/env bash
# Times training over several GPUs of one machine: weak and strong scaling of configs/h200_gdn_500m.yaml, a long context over cp, overlap of
# gradient sums with backward, under `deltron launch` and under mpirun; each beside what `deltron plan` predicts.
#
#   scripts/multi_gpu_bench.sh [--device cuda|cpu] [--ranks N] [--steps N] [--link-gb-s X] [--build FOLDER] [--output FOLDER] [-- KEY=VALUE...]
#
# --device      cpu: a small model over Gloo, to try the script where there is no GPU (default cuda)
# --ranks       at most so many (default: the visible GPUs; on the CPU 2)
# --steps       timed steps a run, after five (default 20)
# --link-gb-s   what one GPU sends to the others while it receives as much (default 370); 'deltron doctor' tells of the links
# --build       build folder to take deltron from (default build/release)
# --output      where runs and logs are kept (default build/multi_gpu_bench)
# KEY=VALUE     further keys of every run
#
# A step's time is wall time between the fifth and the last step over their number. The one-rank run gives plan.achieved_tflops. Prints one
# table; exit code 0 if every run came to its end. Nothing is judged.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

device=cuda ranks='' steps=20 link=370 build=build/release output=build/multi_gpu_bench keys=()
while (($#)); do
  case $1 in
    --device) need_value "$1" $#; device=$2; shift ;;
    --ranks) need_value "$1" $#; ranks=$2; shift ;;
    --steps) need_value "$1" $#; steps=$2; shift ;;
    --link-gb-s) need_value "$1" $#; link=$2; shift ;;
    --build) need_value "$1" $#; build=$2; shift ;;
    --output) need_value "$1" $#; output=$2; shift ;;
    --) shift; keys=("$@"); break ;;
    -h | --help) usage_from_header "$0"; exit 0 ;;
    *) die 2 "unknown option $1; --help lists the options" ;;
  esac
  shift
done
[[ $device == cuda || $device == cpu ]] || die 2 "--device is cuda or cpu, not $device"
cd "$deltron_root"
deltron=$build/deltron
[[ -x $deltron ]] || die 2 "$deltron is missing: build it with scripts/build.sh"
if [[ -z $ranks ]]; then
  ranks=2
  if [[ $device == cuda ]]; then ranks=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true); fi
fi
((ranks >= 1)) || die 2 'no GPU is visible: --device cpu tries the script without one'
config=configs/h200_gdn_500m.yaml batch=8 long=131072
if [[ $device == cpu ]]; then config=configs/kjv_tiny.yaml batch=8 long=2048; fi
mkdir -p "$output"
[[ -f data/kjv/kjv.bin ]] || { scripts/prepare_kjv.sh >"$output/data.log" && "$deltron" data prepare data/kjv/kjv.txt --document-separator '\f' --overwrite --output data/kjv/kjv >>"$output/data.log"; }

rows=() failed=0 tflops=0 first=''
field() { sed -n "s/.*\"$1\": *\([0-9.e+-]*\).*/\1/p" | head -n 1; }

# timed NAME RANKS LAUNCHER KEY=VALUE...: one run, one row.
timed() {
  local name=$1 count=$2 launcher=$3 run=$output/$1 log=$output/$1.log start=() seconds tokens plan predicted
  shift 3
  local settings=(training.device="$device" training.train_iters=$((steps + 5)) optimizer.lr_warmup_iters=2 training.eval_interval=0 training.eval_iters=0
    checkpoint.save="$run" checkpoint.save_interval=0 logging.log_interval=1 "$@" "${keys[@]}")
  case $launcher in
    launch) start=("$deltron" launch --nproc-per-node "$count") ;;
    mpirun) start=(mpirun --allow-run-as-root --oversubscribe -n "$count" "$deltron") ;;
  esac
  rm -rf "$run"
  if ! "${start[@]}" train -c "$config" "${settings[@]}" >"$log" 2>&1; then
    rows+=("$(printf '%-24s %5s  FAILED: %s' "$name" "$count" "$(grep -aE 'E[0-9]{3} ' "$log" | tail -n 1 | cut -c1-100)")")
    failed=$((failed + 1))
    echo "${rows[-1]}"
    return
  fi
  seconds=$(grep '"event":"train"' "$run/metrics.jsonl" | sed 's/.*"step":\([0-9]*\).*"time":\([0-9.]*\).*/\1 \2/' |
    awk '$1 == 5 { from = $2 } { last = $2; n = $1 } END { print (last - from) / (n - 5) }')
  plan=$("$deltron" plan -c "$config" --json --world-size "$count" "${settings[@]}" plan.achieved_tflops="$tflops" plan.link_gb_s="$link")
  tokens=$(field tokens_per_step <<<"$plan")
  if [[ $tflops == 0 ]]; then
    tflops=$(awk -v f="$(field flops_per_token <<<"$plan")" -v t="$tokens" -v s="$seconds" 'BEGIN { print f * t / s / 1e12 }')
    first=$(awk -v t="$tokens" -v s="$seconds" 'BEGIN { print t / s }')
    predicted=$seconds
  else
    predicted=$(tr -d '\n' <<<"$plan" | sed -n 's/.*"predicted_step_seconds": {[^}]*"total": *\([0-9.e+-]*\).*/\1/p')
  fi
  rows+=("$(awk -v name="$name" -v n="$count" -v s="$seconds" -v t="$tokens" -v p="$predicted" -v first="$first" 'BEGIN {
    printf "%-24s %5d %10.1f ms %12.0f tok/s %7.1f %% of one rank x %d   predicted %10.1f ms (%+.1f %%)", name, n, 1000 * s, t / s, 100 * t / s / n / first, n, 1000 * p, 100 * (s / p - 1) }')")
  echo "${rows[-1]}"
}

heading "$config on $device, up to $ranks ranks, $steps steps"
sharded=optimizer.use_distributed_optimizer=true
timed one 1 launch training.global_batch_size=$batch
for count in 2 4 8; do
  ((count <= ranks)) || break
  timed "weak_$count" "$count" launch training.global_batch_size=$((batch * count)) $sharded
  timed "weak_mpirun_$count" "$count" mpirun training.global_batch_size=$((batch * count)) $sharded
  timed "weak_no_overlap_$count" "$count" launch training.global_batch_size=$((batch * count)) $sharded parallel.overlap_grad_reduce=false
  timed "strong_$count" "$count" launch training.global_batch_size=$((batch * 8)) $sharded
  timed "tp2_sp_$count" "$count" launch training.global_batch_size=$((batch * count / 2)) parallel.tensor_model_parallel_size=2 parallel.sequence_parallel=true
  timed "long_cp_$count" "$count" launch training.seq_length=$long training.micro_batch_size=1 training.global_batch_size=1 parallel.context_parallel_size="$count"
done

heading 'table'
printf '%s\n' "${rows[@]}"
echo "plan.achieved_tflops $tflops (one rank), plan.link_gb_s $link"
exit $((failed > 0))
