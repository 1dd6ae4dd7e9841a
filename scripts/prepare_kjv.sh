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
#!/bin/sh
# Takes the King James Bible out of Debian's bible-kjv package as plain text: references stripped, one verse a line, one document a
# chapter (1,189), documents separated by a form feed. Usage: prepare_kjv.sh OUTPUT.txt
# Then: deltron data prepare OUTPUT.txt --document-separator '\f' --output PREFIX
set -eu

output=${1:?usage: prepare_kjv.sh OUTPUT.txt}
# The form feed leaves each chapter its last newline: text without separators is the whole Bible, byte for byte.
expected_chapters=1189
expected_verses=31102
expected_characters=4137850

if ! command -v bible >/dev/null 2>&1; then
  echo "prepare_kjv.sh: the program 'bible' was not found in PATH; Debian/Ubuntu packages: bible-kjv bible-kjv-text (scripts/setup.sh installs them)" >&2
  exit 3
fi
mkdir -p "$(dirname "$output")"
temporary="$output.tmp.$$"
trap 'rm -f "$temporary" "$temporary.raw"' EXIT
trap 'exit 75' INT TERM

LC_ALL=C bible -f 'Genesis1:1-Revelation22:21' > "$temporary.raw" </dev/null
LC_ALL=C awk -v chapters="$expected_chapters" -v verses="$expected_verses" -v characters="$expected_characters" '
  {
    space = index($0, " ")
    colon = index($0, ":")
    if (space == 0 || colon == 0 || colon > space) {
      print "prepare_kjv.sh: line " NR " has no reference: " $0 > "/dev/stderr"
      bad = 1
      exit
    }
    chapter = substr($0, 1, colon - 1)
    text = substr($0, space + 1)
    if (NR > 1 && chapter != last) printf "\f"
    if (chapter != last) count++
    last = chapter
    print text
    total += length(text) + 1
  }
  END {
    if (bad) exit 3
    if (count != chapters || NR != verses || total != characters) {
      printf "prepare_kjv.sh: found %d chapters, %d verses, %d characters; expected %d, %d, %d\n", count, NR, total, chapters, verses, characters > "/dev/stderr"
      exit 3
    }
    printf "King James Bible: %d chapters, %d verses, %d characters\n", count, NR, total > "/dev/stderr"
  }' "$temporary.raw" > "$temporary"
mv "$temporary" "$output"
