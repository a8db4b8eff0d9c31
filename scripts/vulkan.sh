#!/usr/bin/env bash
# Linux reaches the GPU through Vulkan: a loader (libvulkan.so.1) and a driver, which announces itself with a JSON manifest.
# Installs Debian's loader and Mesa drivers (a software adapter among them) where one is missing; elsewhere says what to do.
set -euo pipefail
[ "$(uname -s)" = Linux ] || exit 0 # macOS has Metal and Windows has Direct3D 12

has_loader() {
    local libraries
    libraries=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null) # /sbin is not on every user's PATH
    [[ $libraries == *libvulkan.so.1* ]]
}

has_driver() {
    [ -z "${VK_DRIVER_FILES:-}${VK_ICD_FILENAMES:-}" ] || return 0
    local data=${XDG_DATA_HOME:-${HOME:-}/.local/share} folder
    for folder in /etc /usr/local/etc /usr/local/share /usr/share "$data"; do
        compgen -G "$folder/vulkan/icd.d/*.json" >/dev/null && return 0
    done
    return 1
}

packages=()
has_loader || packages+=(libvulkan1)
has_driver || packages+=(mesa-vulkan-drivers)
[ ${#packages[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "setup: no Vulkan loader or driver found (${packages[*]} in Debian's names). Install your distribution's" >&2
    echo "       Vulkan loader and a driver for your GPU, or Mesa's lavapipe for a software adapter. Going on without." >&2
    exit 0
fi
root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
        { echo "setup: needs root (or sudo) to run: apt-get install ${packages[*]}" >&2; exit 1; }
    root=(sudo)
fi
echo "setup: installing ${packages[*]} (no Vulkan loader or driver found)"
"${root[@]}" apt-get update -qq
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
