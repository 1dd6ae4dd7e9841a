#!/usr/bin/env bash
# Reproduces the memory tables: runs one GDN layer on the meta device and on the CPU, checks that both keep the same storages, and
# writes docs/memory_tables.md.
#
#   tools/reproduce_memory_tables.sh [--full] [--deltron PATH] [--output FILE]
#
# --full          on the CPU at sequence 2048 too, not at 1024 alone: minutes more
# --deltron PATH  the binary [build/cpu-only/deltron]
# --output FILE   where the page goes [docs/memory_tables.md]
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/common.sh"

deltron=$deltron_root/build/cpu-only/deltron
output=$deltron_root/docs/memory_tables.md
lengths=(--seq-length 1024)
while (($# > 0)); do
  case $1 in
    -h | --help) usage_from_header "$0"; exit 0 ;;
    --full) lengths+=(--seq-length 2048); shift ;;
    --deltron) need_value "$1" $#; deltron=$2; shift 2 ;;
    --output) need_value "$1" $#; output=$2; shift 2 ;;
    *) die 2 "unknown option '$1'; --help lists the options" ;;
  esac
done
[[ -x $deltron ]] || die 2 "'$deltron' is no program; scripts/build.sh makes it, --deltron names another"

folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT

heading 'One layer, as published: gdn and gdn2, sequence 1024 and 2048'
"$deltron" memory-table --summary

heading 'The same layer computed on the CPU'
for device in meta cpu; do
  "$deltron" memory-table --device "$device" "${lengths[@]}" --json | grep -v '"device":' >"$folder/$device.json"
done
if ! diff "$folder/meta.json" "$folder/cpu.json" >"$folder/difference"; then
  head -20 "$folder/difference" >&2
  die 8 'meta and cpu keep different storages'
fi
printf '%s cpu and meta keep the same storages: %s of them, byte for byte\n' "$sign_yes" "$(grep -c '"saved_as":' "$folder/cpu.json")"

heading 'The page'
"$deltron" memory-table --all --quiet --format markdown --output "$output"
printf '%s wrote %s\n' "$sign_yes" "$output"
