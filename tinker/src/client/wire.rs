//! Which of the two wires a server speaks, found out once.

use std::sync::Mutex;
use std::sync::PoisonError;

/// How passes are sent and results of passes and samples come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// As newer SDKs do.
    Protobuf,
    /// As SDKs up to 0.24 do.
    Json,
}

impl Wire {
    fn other(self) -> Self {
        match self {
            Self::Protobuf => Self::Json,
            Self::Json => Self::Protobuf,
        }
    }
}

/// A guess, until the server has taken a pass.
pub(super) struct WireChoice(Mutex<Choice>);

struct Choice {
    wire: Wire,
    certain: bool,
}

impl WireChoice {
    pub(super) fn guess(wire: Wire) -> Self {
        Self(Mutex::new(Choice { wire, certain: false }))
    }

    pub(super) fn now(&self) -> Wire {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).wire
    }

    /// The wire to try, and the other one while this is a guess.
    pub(super) fn candidates(&self) -> (Wire, Option<Wire>) {
        let choice = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (choice.wire, (!choice.certain).then(|| choice.wire.other()))
    }

    /// A result came in this form: a better guess for passes, but no proof.
    pub(super) fn lean(&self, wire: Wire) {
        let mut choice = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !choice.certain {
            choice.wire = wire;
        }
    }

    /// The server took it.
    pub(super) fn settle(&self, wire: Wire) {
        let mut choice = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !choice.certain {
            tracing::debug!(?wire, "the server's wire is known");
            *choice = Choice { wire, certain: true };
        }
    }
}
