//! Environments, chat renderers and the registry.
