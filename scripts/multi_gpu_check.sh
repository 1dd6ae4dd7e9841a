#!/usr/bin/env bash
# Checks training over several GPUs through NCCL on one machine: every layout of 2, 4 and 8 ranks against one rank, the same bits twice, and
# what happens when a rank is killed. One table with verdicts last.
#
#   scripts/multi_gpu_check.sh [--device cuda|cpu] [--ranks N] [--build FOLDER] [--binaries FOLDER] [--output FOLDER]
#
# --device    cpu: the same over Gloo, to try the script where there is no GPU (default cuda)
# --ranks     at most so many (default: the visible GPUs; on the CPU 4)
# --build     build folder to take the binaries from (default build/release); --binaries takes them from one flat folder instead
# --output    where logs and runs are kept (default build/multi_gpu_check)
#
# With NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL 2.30 or newer, ranks may share a GPU: slow, for a machine with fewer.
# Exit code 0 only if every check that the machine allows has passed and there were at least two ranks.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

device=cuda ranks='' build=build/release binaries='' output=build/multi_gpu_check
while (($#)); do
  case $1 in
    --device) need_value "$1" $#; device=$2; shift ;;
    --ranks) need_value "$1" $#; ranks=$2; shift ;;
    --build) need_value "$1" $#; build=$2; shift ;;
    --binaries) need_value "$1" $#; binaries=$2; shift ;;
    --output) need_value "$1" $#; output=$2; shift ;;
    -h | --help) usage_from_header "$0"; exit 0 ;;
    *) die 2 "unknown option $1; --help lists the options" ;;
  esac
  shift
done
[[ $device == cuda || $device == cpu ]] || die 2 "--device is cuda or cpu, not $device"
cd "$deltron_root"
deltron=${binaries:-$build}/deltron
parity=${binaries:-$build/tests/model}/test_parallel_processes
for program in "$deltron" "$parity"; do [[ -x $program ]] || die 2 "$program is missing: build it with scripts/build.sh"; done
if [[ -z $ranks ]]; then
  ranks=4
  if [[ $device == cuda ]]; then ranks=$(nvidia-smi --list-gpus 2>/dev/null | grep -c '^GPU' || true); fi
fi
((ranks >= 2)) || die 2 "several ranks are checked, and there is room for $ranks: --ranks N, or a machine with more GPUs"
backend=$([[ $device == cuda ]] && echo nccl || echo gloo)
mkdir -p "$output"
[[ -f data/kjv/kjv.bin ]] || { scripts/prepare_kjv.sh >"$output/data.log" && "$deltron" data prepare data/kjv/kjv.txt --document-separator '\f' --overwrite --output data/kjv/kjv >>"$output/data.log"; }

rows=() failed=0
# check NAME COMMAND...: one row of the table.
check() {
  local name=$1 started=$SECONDS code=0 verdict
  shift
  ("$@") >"$output/$name.log" 2>&1 || code=$?
  verdict=$([[ $code == 0 ]] && echo passed || echo "FAILED ($code)")
  [[ $code == 0 ]] || failed=$((failed + 1))
  rows+=("$(printf '%-26s %-12s %5s s  %s' "$name" "$verdict" $((SECONDS - started)) "$(grep -aE 'passed, [0-9]+ failed|worst|the same|ended|E[0-9]{3} ' "$output/$name.log" | tail -n 1 | cut -c1-90)")")
  echo "${rows[-1]}"
}

# small N RUN OPTION...: 20 steps of a small hybrid on N ranks.
small() {
  local count=$1 run=$2
  shift 2
  rm -rf "$run"
  "$deltron" launch --nproc-per-node "$count" train -c configs/kjv_tiny.yaml training.device="$device" training.train_iters=20 training.micro_batch_size=1 \
    optimizer.lr_warmup_iters=5 checkpoint.save="$run" logging.log_interval=1 "$@"
}
losses() { grep -o '"event":"train","step":[0-9]*\|"loss":[^,]*' "$1/metrics.jsonl" | paste - - ; }

# twice N OPTION...: the same layout two times, the same weights.
twice() {
  local count=$1 i
  shift
  for i in 1 2; do
    small "$count" "$output/twice$i" "$@" || return
    (cd "$output/twice$i/checkpoints" && sha256sum -- */*.safetensors) >"$output/twice$i.sha" || return
  done
  cmp "$output/twice1.sha" "$output/twice2.sha" && echo 'the same weights twice'
}

# beside_one N OPTION...: losses of 20 steps within 1e-3 of one rank's.
beside_one() {
  local count=$1
  shift
  small 1 "$output/one" && small "$count" "$output/many" "$@" && paste <(losses "$output/one") <(losses "$output/many") >"$output/losses.txt" || return
  awk -F'"loss":' '{ split($2, a, "\t"); d = ($3 - a[1]) / a[1]; if (d < 0) d = -d; if (d > worst) worst = d; n++ }
    END { printf "worst loss %.1e of %d steps beside one rank\n", worst, n; exit !(n == 20 && worst < 1e-3) }' "$output/losses.txt"
}

# killed N RANK: that rank dies in backward; the launcher must return its signal within 60 s, and name it.
killed() {
  local count=$1 rank=$2 code=0 started=$SECONDS
  small "$count" "$output/killed" --inject-fault "rank=$rank;at=step 3, backward;how=kill" || code=$?
  echo "ended with $code after $((SECONDS - started)) s"
  ((code == 137 && SECONDS - started < 60))
}

heading "$backend on $device, up to $ranks ranks"
for count in 2 4 8; do
  ((count <= ranks)) || break
  check "parity_fp32_$count" "$deltron" launch --nproc-per-node "$count" --program "$parity" "$device" "$backend"
  check "parity_bf16_$count" "$deltron" launch --nproc-per-node "$count" --program "$parity" "$device" "$backend" bf16
  check "twice_dp_sharded_$count" twice "$count" optimizer.use_distributed_optimizer=true
  check "train_dp_$count" beside_one "$count"
  check "train_dp_sharded_$count" beside_one "$count" optimizer.use_distributed_optimizer=true
  check "train_tp2_sp_$count" beside_one "$count" parallel.tensor_model_parallel_size=2 parallel.sequence_parallel=true
  check "train_cp2_$count" beside_one "$count" parallel.context_parallel_size=2
  if ((count >= 4)); then
    check "train_tp2_sp_cp2_$count" beside_one "$count" parallel.tensor_model_parallel_size=2 parallel.sequence_parallel=true parallel.context_parallel_size=2
    check "twice_tp2_cp2_$count" twice "$count" parallel.tensor_model_parallel_size=2 parallel.context_parallel_size=2
  fi
  check "killed_first_$count" killed "$count" 0
  check "killed_last_$count" killed "$count" $((count - 1))
done

heading 'table'
printf '%s\n' "${rows[@]}"
printf '%s of %s passed on %s with up to %s ranks\n' $((${#rows[@]} - failed)) "${#rows[@]}" "$device" "$ranks"
exit $((failed > 0))
