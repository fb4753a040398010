//! Which of the two wires a server speaks, found out once.

use parking_lot::Mutex;

/// How passes are sent and results of passes and samples come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFormat {
    /// As newer SDKs do.
    Protobuf,
    /// As SDKs up to 0.24 do.
    Json,
}

impl WireFormat {
    fn other(self) -> Self {
        match self {
            Self::Protobuf => Self::Json,
            Self::Json => Self::Protobuf,
        }
    }
}

/// A guess, until the server has taken a pass.
pub(super) struct WireDetection(Mutex<DetectedWire>);

struct DetectedWire {
    wire: WireFormat,
    certain: bool,
}

impl WireDetection {
    pub(super) fn guess(wire: WireFormat) -> Self {
        Self(Mutex::new(DetectedWire { wire, certain: false }))
    }

    pub(super) fn now(&self) -> WireFormat {
        self.0.lock().wire
    }

    /// The wire to try, and the other one while this is a guess.
    pub(super) fn candidates(&self) -> (WireFormat, Option<WireFormat>) {
        let choice = self.0.lock();
        (choice.wire, (!choice.certain).then(|| choice.wire.other()))
    }

    /// A result came in this form: a better guess for passes, but no proof.
    pub(super) fn prefer(&self, wire: WireFormat) {
        let mut choice = self.0.lock();
        if !choice.certain {
            choice.wire = wire;
        }
    }

    /// The server took it.
    pub(super) fn confirm(&self, wire: WireFormat) {
        let mut choice = self.0.lock();
        if !choice.certain {
            tracing::debug!(?wire, "the server's wire is known");
            *choice = DetectedWire { wire, certain: true };
        }
    }
}
