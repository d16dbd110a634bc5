#!/usr/bin/env bash
# The speed table of the README: builds for release, measures disk, log and machine alone, and the
# way over gRPC, and says which goals are met. Takes about two minutes after the build.
set -euo pipefail
cd "$(dirname "$0")"
exec cargo run --release --package jepsen -- prove speed "$@"
