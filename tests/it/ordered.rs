//! One after another: what holds, and who holds it.
