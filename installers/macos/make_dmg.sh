#!/bin/sh
# Puts an application into a disk image with a link to /Applications: make_dmg.sh Hypnos.app hypnos.dmg
# Signs the application first when HYPNOS_SIGN_IDENTITY names a certificate, and then has the image notarised: see sign.sh.
set -eu

[ $# -eq 2 ] || { echo "usage: $(basename "$0") APPLICATION IMAGE" >&2; exit 2; }
application=$1
image=$2
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)

if [ -n "${HYPNOS_SIGN_IDENTITY:-}" ]; then
    /bin/bash "$here/sign.sh" application "$application"
else
    # Without any signature nothing starts on Apple's own processors, not even where it was made.
    codesign --force --deep --sign - "$application"
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ditto "$application" "$folder/$(basename "$application")"
ln -s /Applications "$folder/Applications"
rm -f "$image"
hdiutil create -volname Hypnos -srcfolder "$folder" -fs HFS+ -format UDZO -ov "$image"

[ -z "${HYPNOS_SIGN_IDENTITY:-}" ] || /bin/bash "$here/sign.sh" image "$image"
