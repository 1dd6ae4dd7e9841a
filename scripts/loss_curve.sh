#!/usr/bin/env bash
# Does bf16 on the GPU follow fp32 on the CPU? Both train 200 steps on the King James Bible from one checkpoint, which the CPU made; every
# step's losses are compared. Beside them: fp32 on the GPU and bf16 on the CPU, which tell whose doing a difference is.
#
#   scripts/loss_curve.sh [--deltron BINARY] [--output FOLDER] [--config FILE] [--from STEP] [--limit PERCENT] [--early]
#
# --deltron  the binary (default build/release/deltron); --output: where the runs lie (default build/loss_curve). A run that is finished there
#            is not repeated, so that the CPU's runs may have been made on another machine.
# --from     length of the run that makes the checkpoint (default 400); the schedule spans it and the 200 steps behind it
# --limit    largest difference of bf16 on the GPU to fp32 on the CPU at any step (default 1)
# --early    instead of one checkpoint: the first 200 steps from random weights, where rounding grows; only reported
# Exit code 0 if no step's difference exceeds the limit. Needs data/kjv (scripts/prepare_kjv.sh).
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

deltron=build/release/deltron output=build/loss_curve config=configs/kjv_tiny.yaml from=400 limit=1 early=0
while (($#)); do
  case $1 in
    --deltron) need_value "$1" $#; deltron=$2; shift ;;
    --output) need_value "$1" $#; output=$2; shift ;;
    --config) need_value "$1" $#; config=$2; shift ;;
    --from) need_value "$1" $#; from=$2; shift ;;
    --limit) need_value "$1" $#; limit=$2; shift ;;
    --early) early=1 ;;
    -h | --help) usage_from_header "$0"; exit 0 ;;
    *) die 2 "unknown option $1; --help lists the options" ;;
  esac
  shift
done
cd "$deltron_root"
[[ -x $deltron ]] || die 2 "$deltron is missing"
[[ -f data/kjv/kjv.bin ]] || die 3 "data/kjv/kjv.bin is missing: scripts/prepare_kjv.sh makes it"
mkdir -p "$output"

# run NAME LAST_STEP OPTION...: trains into $output/NAME, unless its log says that step already.
run() {
  local name=$1 last=$2 code=0
  shift 2
  if grep -qs "\"event\":\"train\",\"step\":$last," "$output/$name/metrics.jsonl"; then return; fi
  rm -rf "${output:?}/$name"
  "$deltron" train -c "$config" checkpoint.save="$output/$name" checkpoint.save_interval=0 logging.log_interval=1 training.eval_interval=100000 \
    training.eval_iters=1 "$@" >"$output/$name.log" 2>&1 || code=$?
  ((code == 0 || code == 75)) || die "$code" "$name failed: $(tail -n 2 "$output/$name.log")"
}

# compare NAME: largest and mean difference of its losses to those of cpu_fp32, in percent.
compare() {
  awk -v name="$1" '
    /"event":"train"/ {
      match($0, /"step":[0-9]+/); step = substr($0, RSTART + 7, RLENGTH - 7)
      match($0, /"loss":[0-9.e+-]+/); loss = substr($0, RSTART + 7, RLENGTH - 7)
      if (FNR == NR) { of[step] = loss; next }
      if (!(step in of)) next
      difference = 100 * (loss - of[step]) / of[step]
      if (difference < 0) difference = -difference
      sum += difference; n++
      if (difference >= worst) { worst = difference; at = step }
      last = loss; first = first == "" ? loss : first
    }
    END {
      if (n != 200) { printf "%s: %d steps in common, not 200\n", name, n; exit 1 }
      printf "%-10s worst %.4f %% (step %d)  mean %.4f %%  over %d steps, loss %.4f to %.4f\n", name, worst, at, sum / n, n, first, last
    }' "$output/cpu_fp32/metrics.jsonl" "$output/$1/metrics.jsonl"
}

if ((early)); then
  start=(training.exit_interval=200) last=200
  output=$output/early
  mkdir -p "$output"
else
  last=$((from + 200))
  start=(training.train_iters="$last" --load "$output/base")
  run base "$from" training.device=cpu training.train_iters="$last" training.exit_interval="$from"
fi
run cpu_fp32 "$last" training.device=cpu "${start[@]}"
run cpu_bf16 "$last" training.device=cpu training.bf16=true "${start[@]}"
run gpu_fp32 "$last" training.device=cuda "${start[@]}"
run gpu_bf16 "$last" training.device=cuda training.bf16=true "${start[@]}"
for name in cpu_bf16 gpu_fp32; do compare "$name"; done
result=$(compare gpu_bf16)
echo "$result"
((early)) || awk -v limit="$limit" '{ exit !($3 + 0 <= limit + 0) }' <<<"$result"
