#!/bin/sh
# Installs Hypnos @VERSION@ for one user: unpacks what follows this text, and adds a menu entry, an icon and a command.
set -eu

version=@VERSION@
payload_sha256=@SHA256@
payload_bytes=@BYTES@
unpacked_kilobytes=@KILOBYTES@
first_line=@LINE@

data=${XDG_DATA_HOME:-${HOME:-}/.local/share}
target=
links=yes

usage() {
    cat <<TEXT
usage: sh $(basename "$0") [--target FOLDER] [--no-links] [--check]

Installs Hypnos $version, without root. Running it again replaces an earlier version.
  --target FOLDER   where to (default: $data/hypnos-app)
  --no-links        only the folder: no menu entry, icon or command in ~/.local/bin
  --check           only see whether this file is whole
To remove it: run uninstall.sh in that folder. Models and settings are kept.
TEXT
}

fail() {
    echo "$*" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --target)
            [ $# -ge 2 ] && [ -n "$2" ] || fail "--target needs a folder after it."
            target=$2
            shift
            ;;
        --target=?*) target=${1#--target=} ;;
        --no-links) links=no ;;
        --check) links=check ;;
        -h | --help)
            usage
            exit 0
            ;;
        *)
            usage >&2
            exit 2
            ;;
    esac
    shift
done

payload() {
    tail -n "+$first_line" "$0"
}

[ "$(payload | wc -c)" -eq "$payload_bytes" ] || fail "This file is not whole: download it again."
if command -v sha256sum >/dev/null 2>&1; then
    [ "$(payload | sha256sum | cut -d ' ' -f 1)" = "$payload_sha256" ] || fail "This file is damaged: download it again."
fi
if [ "$links" = check ]; then
    echo "Hypnos $version, whole."
    exit 0
fi

[ "$(uname -sm)" = "Linux @MACHINE@" ] || fail "This is Hypnos for Linux on @MACHINE@; this computer is $(uname -sm)."
if [ -z "$target" ]; then
    [ -n "$data" ] && [ "$data" != /.local/share ] || fail "No home folder is known: set HOME, or use --target."
    target=$data/hypnos-app
fi
mkdir -p "$(dirname "$target")" || fail "The folder of $target cannot be made."
target=$(CDPATH='' cd -- "$(dirname "$target")" && pwd -P)/$(basename "$target")

if [ -e "$target" ] && [ ! -f "$target/uninstall.sh" ] && [ -n "$(ls -A "$target" 2>/dev/null || echo file)" ]; then
    fail "$target is there and is no Hypnos: choose another folder with --target."
fi
for link in /proc/[0-9]*/exe; do
    case $(readlink "$link" 2>/dev/null) in
        "$target/hypnos" | "$target/hypnos-worker") fail "Hypnos is running from $target: quit it first." ;;
    esac
done
free=$(df -Pk "$(dirname "$target")" | awk 'END { print $4 }')
[ "$free" -gt "$unpacked_kilobytes" ] || fail "$((unpacked_kilobytes / 1024)) MB are needed in $(dirname "$target")."

fresh=$target.new-$$
trap 'rm -rf "$fresh"' EXIT
trap 'exit 130' INT TERM HUP
mkdir "$fresh" || fail "Nothing can be written to $(dirname "$target")."
payload | gzip -dc | tar -xf - -C "$fresh" || fail "Unpacking failed."
[ ! -f "$target/uninstall.sh" ] || sh "$target/uninstall.sh" --for-update
if rmdir "$target" 2>/dev/null || [ ! -e "$target" ]; then
    mv "$fresh" "$target"
else
    cp -a "$fresh/." "$target/" # files of the user are in there
    rm -rf "$fresh"
fi
trap - EXIT

# Menu entries quote a program's path for a shell, and then once more for the file.
quoted() {
    printf '%s' "$1" | sed -e 's/[\\"`$]/\\&/g' -e 's/\\/\\\\/g' -e 's/%/%%/g'
}

if [ "$links" = yes ]; then
    mkdir -p "$data/applications" "$data/icons/hicolor/scalable/apps" "$HOME/.local/bin"
    entry=$data/applications/hypnos.desktop
    grep -v -e '^Exec=' -e '^TryExec=' "$target/share/hypnos.desktop" >"$entry"
    printf 'Exec="%s"\n' "$(quoted "$target/hypnos")" >>"$entry"
    printf 'TryExec=%s\n' "$(printf '%s' "$target/hypnos" | sed 's/\\/\\\\/g')" >>"$entry"
    cp "$target/share/hypnos.svg" "$data/icons/hicolor/scalable/apps/hypnos.svg"
    command=$HOME/.local/bin/hypnos
    if [ -L "$command" ] || [ ! -e "$command" ]; then
        ln -sf "$target/hypnos" "$command"
    else
        echo "$command is there and was left as it is."
    fi
fi

missing=$(ldd "$target/hypnos" "$target/_internal/PySide6/Qt/plugins/platforms/libqxcb.so" \
    "$target"/_internal/PySide6/Qt/lib/libQt6Gui.so.6 2>/dev/null | sed -n 's/^[[:space:]]*\(.*\) => not found$/\1/p' | sort -u)
echo "Hypnos $version is installed in $target"
if [ -n "$missing" ]; then
    echo "This system lacks libraries that its windows need:" $missing
    echo "Debian, Ubuntu: sudo apt install @PACKAGES@"
fi
exit 0
# The files follow.
