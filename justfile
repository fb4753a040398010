# Everything that people do with this repository more than once.

# Formatting, lints and tests, as the checks run them.
check:
    .ci/run

# Speed against named yardsticks; results go into benches/README.md.
bench:
    cargo bench --workspace

# Licences and sources of all dependencies (needs cargo-deny).
deny:
    cargo deny check licenses bans sources

# The official SDK of another version against a running `serve`: `just sdk PYTHON MODEL`, with TINKER_BASE_URL set.
sdk python model:
    TINKER_API_KEY="${TINKER_API_KEY:-tml-anything}" {{python}} tests/sdk/official.py {{model}}
