//! From what a call asks for to what the policy says: `:authority` to service, `:path` to route.
//!
//! Both are looked up once per call, so the tables are built for reading: hash maps for whole
//! names, and for prefixes a sorted list in which every prefix knows the next shorter one it
//! extends. A look-up is then one binary search and a few steps, however many routes there are.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::Ipv6Addr;

use crate::config::{PathMatch, RouteConfig};

/// Longest `:authority`, in bytes; host names end at 253.
const AUTHORITY_BYTES_MAX: usize = 255;

/// Values by authority pattern.
#[derive(Debug, Clone)]
pub struct Authorities<T> {
    /// Pattern as configured and its value; the maps point here.
    entries: Vec<(String, T)>,
    exact: HashMap<String, usize>,
    any_port: HashMap<String, usize>,
    anything: Option<usize>,
}

impl<T> Authorities<T> {
    /// Patterns are `host`, `host:port`, `host:*` or `*`; of two equal ones the first counts.
    pub fn new(entries: impl IntoIterator<Item = (String, T)>) -> Self {
        let mut table = Self {
            entries: Vec::new(),
            exact: HashMap::new(),
            any_port: HashMap::new(),
            anything: None,
        };
        for (index, (pattern, value)) in entries.into_iter().enumerate() {
            let lower = pattern.to_ascii_lowercase();
            if lower == "*" {
                table.anything.get_or_insert(index);
            } else if let Some(host) = lower.strip_suffix(":*") {
                table.any_port.entry(host.to_owned()).or_insert(index);
            } else {
                table.exact.entry(lower).or_insert(index);
            }
            table.entries.push((pattern, value));
        }
        table
    }

    /// The value of the most specific pattern: the very text, then `host:*`, then `*`. A pattern
    /// without a port matches only an authority without one.
    #[must_use]
    pub fn find(&self, authority: &str) -> Option<&T> {
        let lower = ascii_lower(authority);
        let index = self
            .exact
            .get(lower.as_ref())
            .or_else(|| self.any_port.get(split_port(&lower).0))
            .or(self.anything.as_ref())?;
        self.entries.get(*index).map(|(_, value)| value)
    }

    /// Every pattern as configured, for error texts.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(pattern, _)| pattern.as_str())
    }
}

fn ascii_lower(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(text.to_ascii_lowercase())
    } else {
        Cow::Borrowed(text)
    }
}

/// Host and what follows its colon. The colons inside an IPv6 literal's brackets are the host's.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    let literal = if authority.starts_with('[') { authority.find(']').unwrap_or(0) } else { 0 };
    match authority[literal..].rfind(':') {
        Some(colon) => (&authority[..literal + colon], Some(&authority[literal + colon + 1..])),
        None => (authority, None),
    }
}

/// An `:authority` that is none (H2-38).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed authority: {reason}")]
pub struct BadAuthority {
    /// What is wrong with it.
    pub reason: &'static str,
}

/// Whether a text is `host` or `host:port` (RFC 3986 3.2 without user info, which RFC 9113 8.3.1
/// forbids). An empty text is none: missing and empty authorities are for the caller to replace.
pub fn check_authority(text: &str) -> Result<(), BadAuthority> {
    let refuse = |reason| Err(BadAuthority { reason });
    if text.is_empty() {
        return refuse("it is empty");
    }
    if text.len() > AUTHORITY_BYTES_MAX {
        return refuse("it is longer than 255 bytes");
    }
    if text.contains('@') {
        return refuse("it holds user info");
    }
    let (host, port) = split_port(text);
    if port.is_some_and(|port| !is_port(port)) {
        return refuse("its port is not a number up to 65535");
    }
    if host.is_empty() {
        return refuse("it has no host");
    }
    let good = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').is_some_and(is_ip_literal),
        None => is_registered_name(host),
    };
    if good {
        Ok(())
    } else {
        refuse("its host holds something that no host may hold")
    }
}

fn is_port(text: &str) -> bool {
    text.len() <= 5 && text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// An IPv6 address, perhaps with a zone after `%` or `%25` (RFC 6874).
fn is_ip_literal(text: &str) -> bool {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (text, None),
    };
    let named = |zone: &str| !zone.is_empty() && zone.bytes().all(is_unreserved);
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(named)
}

/// A reg-name of RFC 3986 3.2.2. Percent-encoding is allowed, since clients of Unix sockets put
/// the encoded path here.
fn is_registered_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let good = match byte {
            b'%' => {
                let mut hex = || bytes.next().is_some_and(|byte| byte.is_ascii_hexdigit());
                hex() && hex()
            }
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' => true,
            _ => is_unreserved(byte),
        };
        if !good {
            return false;
        }
    }
    true
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// The routes of one service.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    exact: HashMap<String, RouteConfig>,
    /// Ascending by prefix.
    prefixes: Vec<Prefix>,
}

#[derive(Debug, Clone)]
struct Prefix {
    text: String,
    route: RouteConfig,
    /// Index of the longest other prefix that this one begins with.
    shorter: Option<usize>,
}

impl Routes {
    /// Of two routes that match the same, the first counts.
    #[must_use]
    pub fn new(routes: &[RouteConfig]) -> Self {
        let mut exact = HashMap::new();
        let mut sorted: Vec<(&str, &RouteConfig)> = Vec::new();
        for route in routes {
            match &route.matcher {
                PathMatch::Path(path) => {
                    exact.entry(path.clone()).or_insert_with(|| route.clone());
                }
                PathMatch::PathPrefix(prefix) => sorted.push((prefix, route)),
            }
        }
        sorted.sort_by_key(|(text, _)| *text); // Stable: equal ones stay in order, for the next line.
        sorted.dedup_by_key(|(text, _)| *text);
        let mut prefixes: Vec<Prefix> = Vec::with_capacity(sorted.len());
        for (text, route) in sorted {
            let shorter = longest(&prefixes, prefixes.len().checked_sub(1), text);
            prefixes.push(Prefix { text: text.to_owned(), route: route.clone(), shorter });
        }
        Self { exact, prefixes }
    }

    /// The route of a path: the exact one, else the one of the longest prefix.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<&RouteConfig> {
        if let Some(route) = self.exact.get(path) {
            return Some(route);
        }
        let after = self.prefixes.partition_point(|prefix| prefix.text.as_str() <= path);
        let found = longest(&self.prefixes, after.checked_sub(1), path)?;
        self.prefixes.get(found).map(|prefix| &prefix.route)
    }
}

/// The longest prefix of `path`, given the last entry that sorts not after it.
///
/// Why that one leads there: whatever sorts between a prefix of `path` and `path` itself begins
/// with that prefix, too. So every prefix of `path` stands in the chain of the last entry before
/// it, longest first.
fn longest(prefixes: &[Prefix], last: Option<usize>, path: &str) -> Option<usize> {
    let mut candidate = last;
    while let Some(index) = candidate {
        if path.starts_with(&prefixes[index].text) {
            return Some(index);
        }
        candidate = prefixes[index].shorter;
    }
    None
}
