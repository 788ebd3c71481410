//! Tests of why.
