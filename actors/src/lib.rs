//! The actors of the line and the kit they stand on.
