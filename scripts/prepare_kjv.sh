#!/usr/bin/env bash
# Takes the King James Bible out of Debian's bible-kjv package: verse text alone, one verse a line, one document a
# chapter, a blank line between documents.
#
#   scripts/prepare_kjv.sh [FOLDER]      (default data/kjv)
#
# Writes FOLDER/kjv.txt and FOLDER/heldout.txt: the last tenth of the documents, rounded as the trainer's split
# "90,10,0" rounds. Files that are right already keep their time stamps.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

[[ "${1:-}" == -h || "${1:-}" == --help ]] && { usage_from_header "$0"; exit 0; }
folder=${1:-$deltron_root/data/kjv}
command -v bible >/dev/null || die 3 "the program 'bible' is not in PATH; scripts/setup.sh installs it (Debian package bible-kjv)"
mkdir -p "$folder"
work=$(mktemp -d "$folder/prepare.XXXXXX")
trap 'rm -rf "$work"' EXIT

# A line is "Ge1:1 In the beginning ..."; what stands before the colon names the chapter.
bible -f 'Genesis1:1-Revelation22:21' >"$work/verses"
awk '{
  chapter = $1; sub(/:.*/, "", chapter)
  if (NR > 1 && chapter != last) print ""
  last = chapter
  sub(/^[^ ]+ /, ""); print
}' "$work/verses" >"$work/kjv.txt"

documents=$(awk 'BEGIN { RS = "" } END { print NR }' "$work/kjv.txt")
verses=$(wc -l <"$work/verses")
((documents == 1189 && verses == 31102)) ||
  die 3 "bible-kjv gave $documents chapters and $verses verses, expected 1189 and 31102; is another version installed?"
# One byte is one character only in ASCII; the bits per character that are reported rest on it.
if LC_ALL=C grep -q '[^ -~]' "$work/kjv.txt"; then die 3 'the text holds bytes that are not printable ASCII'; fi

training=$(((documents * 9 + 5) / 10))
awk -v first="$training" 'BEGIN { RS = "" } NR > first' "$work/kjv.txt" >"$work/heldout.txt"
for name in kjv.txt heldout.txt; do
  cmp -s "$work/$name" "$folder/$name" || mv "$work/$name" "$folder/$name"
done
echo "$folder/kjv.txt: $verses verses, $documents documents, $((documents - training)) of them held out ($(wc -c <"$folder/heldout.txt") characters)"
