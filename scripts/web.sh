#!/usr/bin/env bash
# Browsers for tests/web and `make web`: Debian's chromium and firefox-esr, playwright, which drives the first, and
# TypeScript, which checks the types of the JavaScript. Says what is missing where it cannot be had, and ends well: what
# needs it is skipped, in words.
set -uo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
missing() { echo "web-setup: $1; going on without" >&2; }

has_browser() { [ -n "${CHROMIUM:-}" ] || command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null; }

has_firefox() { [ -n "${FIREFOX:-}" ] || command -v firefox firefox-esr >/dev/null; }

install() { # a package of the system
    command -v apt-get >/dev/null || return
    local root=() apt=(env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1")
    [ "$(id -u)" -eq 0 ] || root=(sudo -n)
    echo "web-setup: installing $1"
    "${root[@]}" "${apt[@]}" >/dev/null 2>&1 ||
        { "${root[@]}" apt-get update -qq >/dev/null 2>&1 && "${root[@]}" "${apt[@]}" >/dev/null 2>&1; }
}

has_browser || install chromium
has_browser || missing "no chromium (apt-get install chromium, or set CHROMIUM to a Chrome): no tests in a browser"
has_firefox || install firefox-esr
has_firefox || missing "no firefox (apt-get install firefox-esr, or set FIREFOX to one): no tests in Firefox"
"$venv/bin/python" -c 'import playwright' 2>/dev/null ||
    "$venv/bin/python" -m pip install --quiet --constraint constraints.txt 'playwright>=1.50' ||
    missing "no playwright (pip install playwright): no tests in a browser"

typescript=.web-tools/node_modules/typescript/package.json
if [ ! -e "$typescript" ]; then
    if command -v npm >/dev/null; then
        echo "web-setup: installing TypeScript"
        npm install --silent --no-audit --no-fund --prefix .web-tools typescript@7 >/dev/null 2>&1 ||
            missing "npm could not install TypeScript: the types of the JavaScript are not checked"
    else
        missing "no npm: the types of the JavaScript are not checked"
    fi
fi
exit 0
