//! Tests of the timeline.
