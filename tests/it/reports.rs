//! Numbers that agree with the attempts they were counted from.
