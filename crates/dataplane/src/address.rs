//! A network address as operators write it: `ip:port`, `[ip6]:port` or `unix:/path`.
//!
//! Host names are deliberately no addresses: whoever resolves them is discovery, so that an
//! endpoint is one address and port whatever number of records name it.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;

/// Where to listen or whom to dial.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket by its path.
    Unix(PathBuf),
}

impl Address {
    /// The TCP port, if it has one.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(address) => Some(address.port()),
            Self::Unix(_) => None,
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            // sun_path holds 108 bytes on Linux, the terminating zero included.
            if !path.starts_with('/') || path.len() > 107 {
                return Err(format!(
                    "`{text}` is not a Unix socket: expected `unix:/absolute/path` of at most 107 bytes"
                ));
            }
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        text.parse()
            .map(Self::Tcp)
            .map_err(|_| format!("`{text}` is not an address: expected `ip:port` or `unix:/path`"))
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "{address}"),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn round_trips_what_operators_write() {
        for text in ["10.0.0.1:50051", "[::1]:80", "unix:/run/app.sock"] {
            assert_eq!(text.parse::<Address>().expect("valid").to_string(), text);
        }
    }

    #[test]
    fn refuses_names_and_relative_paths() {
        for text in [
            "checkout:50051",
            "10.0.0.1",
            "unix:app.sock",
            "unix:",
            "",
            "10.0.0.1:70000",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        assert!(format!("unix:/{}", "x".repeat(107))
            .parse::<Address>()
            .is_err());
    }
}
