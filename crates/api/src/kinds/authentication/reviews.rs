//! SelfSubjectReviews and TokenReviews: questions that are answered and never stored.
//! Answered by the API server (`registry/reviews.rs`).

use crate::kinds::{Behavior, Handler};

#[derive(Default)]
pub struct SelfSubjectReview;

impl Behavior for SelfSubjectReview {
    fn handler(&self) -> Handler {
        Handler::SelfSubjectReview
    }
}

#[derive(Default)]
pub struct TokenReview;

impl Behavior for TokenReview {
    fn handler(&self) -> Handler {
        Handler::TokenReview
    }
}
