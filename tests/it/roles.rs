//! Each role does its part and sees no more.
