#!/usr/bin/env bash
# From a fresh machine to a trained language model: installs what is missing, builds deltron, makes the data (King James
# Bible), trains, evaluates on the last tenth of the documents, shows a sample, and compares with gzip and bzip2.
#
#   scripts/train.sh [--minutes N] [--config FILE] [--out DIR] [--no-setup] [-- section.key=value ...]
#     --minutes N    training time to aim at (default 5); the number of steps is fixed from it before training starts
#     --config FILE  default configs/kjv_tiny.yaml
#     --out DIR      run folder; must not exist yet. Default: runs/CONFIG-DATE-TIME
#     --no-setup     skip scripts/setup.sh
#
# Safe to run again: data and build are reused, every run gets a folder of its own.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

minutes=5 config=configs/kjv_tiny.yaml out='' setup=1 overrides=()
while (($#)); do
  case $1 in
    --minutes) need_value "$1" $#; minutes=$2; shift ;;
    --config | -c) need_value "$1" $#; config=$(realpath -- "$2"); shift ;;
    --out) need_value "$1" $#; out=$(realpath -m -- "$2"); shift ;;
    --no-setup) setup=0 ;;
    --) shift; overrides=("$@"); break ;;
    -h | --help) usage_from_header "$0"; exit 0 ;;
    *) die 2 "train.sh: unknown option '$1'; --help lists them" ;;
  esac
  shift
done
[[ $minutes =~ ^[0-9]+([.][0-9]+)?$ && ! $minutes =~ ^0+([.]0+)?$ ]] || die 2 "--minutes takes a number above 0, not '$minutes'"
cd "$deltron_root"
[[ -f $config ]] || die 2 "configuration $config does not exist"
if [[ -n $out ]]; then
  [[ ! -e $out ]] || die 2 "run folder $out exists already; name another one with --out"
else
  out=runs/$(basename -- "${config%.*}")-$(date +%Y%m%d-%H%M%S)
  stem=$out number=2
  while [[ -e $out ]]; do out=$stem-$number number=$((number + 1)); done
fi

if ((setup)); then
  heading 'set-up'
  scripts/setup.sh
fi

heading 'build'
# CUDA only where a GPU answers. A build folder that is configured already keeps its choices.
options=()
if [[ ! -f build/release/CMakeCache.txt ]]; then
  options+=(-DDELTRON_TESTS=OFF)
  if nvidia-smi -L >/dev/null 2>&1; then options+=(-DDELTRON_CUDA=AUTO); else options+=(-DDELTRON_CUDA=OFF); fi
fi
scripts/build.sh release deltron -- "${options[@]}"
deltron=build/release/deltron

heading 'data'
scripts/prepare_kjv.sh
data=data/kjv/kjv
if [[ -f $data.idx && -f $data.bin && $data.idx -nt $data.txt && $data.bin -nt $data.txt ]]; then
  echo "$data.bin and $data.idx are up to date"
else
  rm -f "$data.bin" "$data.idx"
  "$deltron" data prepare "$data.txt" --document-separator '\f' --output "$data"
fi

heading "training for about $minutes minutes into $out"
"$deltron" train -c "$config" --minutes "$minutes" "checkpoint.save=$out" "${overrides[@]}"

heading 'evaluation on the last tenth of the documents'
evaluation=$("$deltron" evaluate "$out" --split valid --seq-length 1024 --json)
echo "$evaluation"
# The text is ASCII (prepare_kjv.sh checks it), so a byte is a character.
model_bits=$(sed -n 's/.*"bits_per_byte"[[:space:]]*:[[:space:]]*\([0-9.eE+-]*\).*/\1/p' <<<"$evaluation" | head -n 1)
[[ -n $model_bits ]] || die 8 "deltron evaluate --json printed no 'bits_per_byte'"

heading 'sample'
"$deltron" generate "$out" --prompt 'And it came to pass' --max-tokens 300

heading "held-out text, bits per character (run folder: $out)"
printf 'model %.3f bits per character\n' "$model_bits"
scripts/compressors.sh data/kjv/heldout.txt
