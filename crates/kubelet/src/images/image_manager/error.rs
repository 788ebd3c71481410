//! Why an image is not present, as a waiting container and its Events tell it.
//! Part of `image_manager`.
//! The only place that reads the text of a runtime's error; everything else matches on the variants.

use super::reference::InvalidReference;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    #[error("Failed to apply default image tag {image:?}: {cause}")]
    InvalidImageName { image: String, cause: InvalidReference },
    #[error("Failed to inspect image {image:?}: {error}")]
    Inspect { image: String, error: String },
    #[error("Container image {image:?} is not present with pull policy of Never")]
    NeverPull { image: String },
    #[error("Back-off pulling image {image:?}{}", .last.as_ref().map_or(String::new(), |last| format!(": {last}")))]
    BackOff { image: String, last: Option<String> },
    #[error("{0}")]
    Pull(String),
    #[error("image pull failed for {image} because the registry is unavailable{detail}")]
    RegistryUnavailable { image: String, detail: String },
    #[error("image pull failed for {image} because the signature validation failed{detail}")]
    SignatureValidationFailed { image: String, detail: String },
}

impl ImageError {
    /// Of a failed pull. CRI has no field for why one failed: runtimes put its reason first in the message.
    pub(super) fn from_pull(image: &str, error: &str) -> Self {
        let image = image.to_string();
        if let Some(detail) = error.strip_prefix("RegistryUnavailable") {
            return Self::RegistryUnavailable { image, detail: detail.into() };
        }
        if let Some(detail) = error.strip_prefix("SignatureValidationFailed") {
            return Self::SignatureValidationFailed { image, detail: detail.into() };
        }
        Self::Pull(error.into())
    }

    /// What the waiting state of a container shows.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidImageName { .. } => "InvalidImageName",
            Self::Inspect { .. } => "ImageInspectError",
            Self::NeverPull { .. } => "ErrImageNeverPull",
            Self::BackOff { .. } => "ImagePullBackOff",
            Self::Pull(_) => "ErrImagePull",
            Self::RegistryUnavailable { .. } => "RegistryUnavailable",
            Self::SignatureValidationFailed { .. } => "SignatureValidationFailed",
        }
    }

    pub fn event_reason(&self) -> &'static str {
        match self {
            Self::InvalidImageName { .. } | Self::Inspect { .. } => "InspectFailed",
            Self::NeverPull { .. } => "ErrImageNeverPull",
            Self::BackOff { .. } => "BackOff",
            Self::Pull(_) | Self::RegistryUnavailable { .. } | Self::SignatureValidationFailed { .. } => "Failed",
        }
    }

    /// Whether a pull was tried just now.
    pub fn is_failed_pull(&self) -> bool {
        matches!(self, Self::Pull(_) | Self::RegistryUnavailable { .. } | Self::SignatureValidationFailed { .. })
    }
}

/// A code that says that nothing is known only hides what is said.
pub(super) fn without_unknown_code(error: &str) -> String {
    error.strip_prefix("rpc error: code = Unknown desc = ").unwrap_or(error).to_string()
}
