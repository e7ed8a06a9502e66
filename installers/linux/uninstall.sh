#!/bin/sh
# Removes this folder's Hypnos, and the menu entry, icon and command that lead to it. Models and settings are kept.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
data=${XDG_DATA_HOME:-${HOME:-}/.local/share}

# As menu entries quote a program's path.
quoted() {
    printf '%s' "$1" | sed -e 's/[\\"`$]/\\&/g' -e 's/\\/\\\\/g' -e 's/%/%%/g'
}

for link in /proc/[0-9]*/exe; do
    case $(readlink "$link" 2>/dev/null) in
        "$here/hypnos" | "$here/hypnos-worker")
            echo "Hypnos is running from $here: quit it first." >&2
            exit 1
            ;;
    esac
done

if [ "${1:-}" != --for-update ]; then
    [ "$(readlink "$HOME/.local/bin/hypnos" 2>/dev/null)" != "$here/hypnos" ] || rm -f "$HOME/.local/bin/hypnos"
    entry=$data/applications/hypnos.desktop
    if grep -q -s -x -F "TryExec=$(printf '%s' "$here/hypnos" | sed 's/\\/\\\\/g')" "$entry"; then
        rm -f "$entry" "$data/icons/hicolor/scalable/apps/hypnos.svg"
    fi
    # Written by the program itself when it was asked to start at login.
    login=${XDG_CONFIG_HOME:-$HOME/.config}/autostart/hypnos.desktop
    if grep -q -s -F "Exec=\"$(quoted "$here/hypnos")\"" "$login"; then
        rm -f "$login"
    fi
fi

# Only what came with it: whatever else lies in this folder is the user's.
list=$here/files.txt
while IFS= read -r file; do
    rm -f "$here/$file"
done <"$list"
rm -f "$list"
find "$here" -depth -type d -empty -exec rmdir {} \;
[ "${1:-}" = --for-update ] || echo "Hypnos is removed from $here"
