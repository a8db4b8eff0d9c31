#!/usr/bin/env bash
# SwiftShader, the software adapter that Dawn runs on, into .swiftshader/: libvk_swiftshader.so and the manifest that names
# it, out of Debian's package chromium-common, which is not installed. Where that cannot be had it says so, and ends well:
# what needs it looks for the manifest.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=.swiftshader
manifest=$folder/vk_swiftshader_icd.json
[ ! -e "$manifest" ] || exit 0

without() {
    echo "swiftshader: $1; going on without (nothing will run on Dawn here)" >&2
    exit 0
}

command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || without "no apt-get and dpkg-deb"
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
get() { (cd "$download" && apt-get download -qq -o APT::Sandbox::User=root chromium-common >/dev/null 2>&1); }
echo "swiftshader: fetching it out of Debian's package chromium-common"
get || { [ "$(id -u)" -eq 0 ] && apt-get update -qq >/dev/null 2>&1 && get; } || without "no package chromium-common"
dpkg-deb --fsys-tarfile "$download"/chromium-common_*.deb |
    tar -x -C "$download" --wildcards '*/libvk_swiftshader.so' '*/vk_swiftshader_icd.json' 2>/dev/null ||
    without "chromium-common has no SwiftShader any more"
mkdir -p "$folder"
find "$download" -name libvk_swiftshader.so -exec mv {} "$folder" \;
find "$download" -name vk_swiftshader_icd.json -exec mv {} "$folder" \; # last: it says that all is there
