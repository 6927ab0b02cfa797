//! Stub.
/// Stub.
#[derive(Clone, Debug)]
pub struct Policy;
