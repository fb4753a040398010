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
