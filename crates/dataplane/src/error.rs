//! What can go wrong, said so that an operator knows where and what to do.

/// The configuration is refused; the last good one stays in force.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct ConfigError {
    /// Path in the JSON document.
    pub path: String,
    /// What was found and what was expected.
    pub message: String,
}

/// A listener could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("{source_position}: cannot listen on `{address}` for `{listener}`: {cause}")]
pub struct BindError {
    /// The listener's name.
    pub listener: String,
    /// The address as configured.
    pub address: String,
    /// `file:line:column` where it is configured.
    pub source_position: String,
    /// The operating system's answer.
    pub cause: std::io::Error,
}

/// Anything that starting, changing or using the data plane can fail with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Refused configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Refused address.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Used before the start or after the stop.
    #[error("the data plane is not running")]
    NotRunning,
    /// The operating system refused a thread or a runtime.
    #[error("cannot start a data thread: {0}")]
    Thread(#[source] std::io::Error),
}
