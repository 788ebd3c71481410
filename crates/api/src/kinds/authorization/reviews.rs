//! Access reviews: questions that are answered and never stored.
//! Answered by the API server (`registry/reviews.rs`).

use crate::kinds::{Behavior, Handler};

#[derive(Default)]
pub struct LocalSubjectAccessReview;

impl Behavior for LocalSubjectAccessReview {
    fn handler(&self) -> Handler {
        Handler::LocalSubjectAccessReview
    }
}

#[derive(Default)]
pub struct SelfSubjectAccessReview;

impl Behavior for SelfSubjectAccessReview {
    fn handler(&self) -> Handler {
        Handler::SelfSubjectAccessReview
    }
}

#[derive(Default)]
pub struct SelfSubjectRulesReview;

impl Behavior for SelfSubjectRulesReview {
    fn handler(&self) -> Handler {
        Handler::SelfSubjectRulesReview
    }
}

#[derive(Default)]
pub struct SubjectAccessReview;

impl Behavior for SubjectAccessReview {
    fn handler(&self) -> Handler {
        Handler::SubjectAccessReview
    }
}
