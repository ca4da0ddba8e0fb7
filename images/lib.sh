# shellcheck shell=bash
# What the recipes share: the cache, exit codes, messages. Sourced, never run.

# Exit codes of all recipes: 3 = no network, 4 = something is missing on this machine.
# shellcheck disable=SC2034 # used by those who source this
readonly NO_NETWORK=3 MISSING=4

# shellcheck disable=SC2034 # as above
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${EXOTRACE_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/exotrace}
mkdir -p "$cache"

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { # code text
    local code=$1
    shift
    say "$*"
    exit "$code"
}

# Fails unless all commands exist; names the Debian packages that have them. Arguments: command=package …
need() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    ((${#missing[@]} == 0)) || die $MISSING "missing here; install with: apt-get install ${missing[*]}"
}

# Packs a directory as an uncompressed newc archive, owned by root, the same bytes for the same content and times.
pack() { # directory file
    (cd "$1" && find . -mindepth 1 -print0 | LC_ALL=C sort -z |
        cpio --quiet --null -o -H newc -R 0:0 --reproducible) >"$2"
}

# A text that changes when one of the files does.
fingerprint() { # file…
    cat "$@" | sha256sum | cut -c1-16
}
