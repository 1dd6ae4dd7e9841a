#!/usr/bin/env bash
# Takes the King James Bible out of Debian's bible-kjv package: verse text alone, one verse a line, one document a
# chapter (1,189), a form feed between documents. The text without its form feeds is the whole Bible, byte for byte.
#
#   scripts/prepare_kjv.sh [FOLDER]      (default data/kjv)
#
# Writes FOLDER/kjv.txt, for 'deltron data prepare --document-separator "\f"', and FOLDER/heldout.txt: the text of the last
# tenth of the documents, rounded as the split "90,10,0" rounds. Files that are right already keep their time stamps.
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
LC_ALL=C bible -f 'Genesis1:1-Revelation22:21' >"$work/verses" </dev/null
LC_ALL=C awk '{
  space = index($0, " "); colon = index($0, ":")
  if (space == 0 || colon == 0 || colon > space) { print "line " NR " has no reference: " $0 >"/dev/stderr"; exit 3 }
  chapter = substr($0, 1, colon - 1)
  if (NR > 1 && chapter != last) printf "\f"
  last = chapter
  print substr($0, space + 1)
}' "$work/verses" >"$work/kjv.txt" || die 3 'bible-kjv gave text of another form; is another version installed?'

separators=$(LC_ALL=C tr -cd '\f' <"$work/kjv.txt" | wc -c)
documents=$((separators + 1))
verses=$(wc -l <"$work/verses")
characters=$(($(wc -c <"$work/kjv.txt") - separators))
((documents == 1189 && verses == 31102 && characters == 4137850)) ||
  die 3 "bible-kjv gave $documents chapters, $verses verses, $characters characters, expected 1189, 31102, 4137850; is another version installed?"
# One byte is one character only in ASCII; the bits per character that are reported rest on it.
if LC_ALL=C tr -d '\f' <"$work/kjv.txt" | LC_ALL=C grep -q '[^ -~]'; then die 3 'the text holds bytes that are not printable ASCII'; fi

training=$(((documents * 9 + 5) / 10))
LC_ALL=C awk -v first="$training" 'BEGIN { RS = "\f" } NR > first { printf "%s", $0 }' "$work/kjv.txt" >"$work/heldout.txt"
for name in kjv.txt heldout.txt; do
  cmp -s "$work/$name" "$folder/$name" || mv "$work/$name" "$folder/$name"
done
echo "$folder/kjv.txt: $verses verses, $documents documents, $((documents - training)) of them held out ($(wc -c <"$folder/heldout.txt") characters)"
