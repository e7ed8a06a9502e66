#!/bin/bash
# Signs and notarises, so that macOS starts what was downloaded.
#
# Needed once: a membership of Apple's developer programme; a "Developer ID Application" certificate in the keychain;
# and the credentials of the notary service, stored under a name:
#     xcrun notarytool store-credentials hypnos-notary --apple-id ADDRESS --team-id TEAM
# Then, for each release:
#     HYPNOS_SIGN_IDENTITY="Developer ID Application: NAME (TEAM)" HYPNOS_NOTARY_PROFILE=hypnos-notary \
#         .venv/bin/python installers/build.py
# which calls this script twice, as `sign.sh application Hypnos.app` and `sign.sh image hypnos.dmg`.
set -eu

[ $# -eq 2 ] || { echo "usage: $(basename "$0") application|image FILE" >&2; exit 2; }
: "${HYPNOS_SIGN_IDENTITY:?names the certificate to sign with}"
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)

sign() {
    codesign --force --timestamp --options runtime --sign "$HYPNOS_SIGN_IDENTITY" "$@"
}

case $1 in
    application)
        # From the inside out: a signature covers those of the files below it.
        find "$2/Contents" -type f \( -name '*.dylib' -o -name '*.so' \) -print0 |
            while IFS= read -r -d '' library; do sign "$library"; done
        find "$2/Contents/Frameworks" -type d -name '*.framework' -prune -print0 |
            while IFS= read -r -d '' framework; do sign "$framework"; done
        sign --entitlements "$here/entitlements.plist" "$2/Contents/MacOS/hypnos-worker"
        sign --entitlements "$here/entitlements.plist" "$2"
        codesign --verify --deep --strict --verbose=2 "$2"
        ;;
    image)
        : "${HYPNOS_NOTARY_PROFILE:?names the stored credentials of the notary service}"
        sign "$2"
        xcrun notarytool submit "$2" --keychain-profile "$HYPNOS_NOTARY_PROFILE" --wait
        xcrun stapler staple "$2"
        spctl --assess --type open --context context:primary-signature --verbose "$2"
        ;;
    *)
        echo "usage: $(basename "$0") application|image FILE" >&2
        exit 2
        ;;
esac
