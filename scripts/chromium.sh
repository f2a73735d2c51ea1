#!/bin/sh
# Print where a Chromium is, for the tests of the report and the review page. Where there is none, Debian's is installed
# if that can be done here; else nothing is printed, and those tests fail and say what to do.
found() {
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" 2>/dev/null && return 0
    done
    return 1
}

[ "$NARL_NO_BROWSER" = 1 ] && exit 0
[ -n "$CHROMIUM" ] && echo "$CHROMIUM" && exit 0
found && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Debian's chromium for the tests in a browser (once, about a minute)" >&2
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    {
        apt-get update -qq && apt-get install -qq -y --no-install-recommends -o DPkg::Lock::Timeout=120 chromium
    } >"$log" 2>&1 </dev/null || tail -n 5 "$log" >&2
    rm -f "$log"
fi
found || exit 0
