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
    let literal = if authority.starts_with('[') {
        authority.find(']').unwrap_or(0)
    } else {
        0
    };
    match authority[literal..].rfind(':') {
        Some(colon) => (
            &authority[..literal + colon],
            Some(&authority[literal + colon + 1..]),
        ),
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
            prefixes.push(Prefix {
                text: text.to_owned(),
                route: route.clone(),
                shorter,
            });
        }
        Self { exact, prefixes }
    }

    /// The route of a path: the exact one, else the one of the longest prefix.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<&RouteConfig> {
        if let Some(route) = self.exact.get(path) {
            return Some(route);
        }
        let after = self
            .prefixes
            .partition_point(|prefix| prefix.text.as_str() <= path);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{ascii_lower, check_authority, Authorities, Routes};
    use crate::config::{PathMatch, RouteConfig, RulesConfig};

    fn table(patterns: &[&str]) -> Authorities<String> {
        Authorities::new(
            patterns
                .iter()
                .map(|text| ((*text).to_owned(), (*text).to_owned())),
        )
    }

    fn route(matcher: PathMatch, timeout_ms: u64) -> RouteConfig {
        RouteConfig {
            matcher,
            timeout_ms: Some(timeout_ms),
            wait_for_ready: None,
            rules: RulesConfig::default(),
            idempotent: false,
            retry: None,
            hedge: None,
            rule: 0,
            repetition: 0,
        }
    }

    fn exact(path: &str, timeout_ms: u64) -> RouteConfig {
        route(PathMatch::Path(path.into()), timeout_ms)
    }

    fn prefix(path: &str, timeout_ms: u64) -> RouteConfig {
        route(PathMatch::PathPrefix(path.into()), timeout_ms)
    }

    /// The definition: first exact path, else first of the longest prefixes.
    fn naive<'a>(routes: &'a [RouteConfig], path: &str) -> Option<&'a RouteConfig> {
        let whole =
            |route: &&RouteConfig| matches!(&route.matcher, PathMatch::Path(p) if p == path);
        routes.iter().find(whole).or_else(|| {
            routes.iter().rev().max_by_key(|route| match &route.matcher {
                PathMatch::PathPrefix(prefix) if path.starts_with(prefix) => prefix.len(),
                _ => 0,
            })
            .filter(|route| {
                matches!(&route.matcher, PathMatch::PathPrefix(prefix) if path.starts_with(prefix))
            })
        })
    }

    #[test]
    fn the_most_specific_authority_wins() {
        let table = table(&[
            "*",
            "cart",
            "cart:80",
            "cart:*",
            "[::1]:80",
            "[fe80::1]:*",
            "pay",
        ]);
        for (authority, expected) in [
            ("cart", "cart"),
            ("cart:80", "cart:80"),
            ("cart:81", "cart:*"),
            ("CART:81", "cart:*"),
            ("Cart", "cart"),
            ("pay", "pay"),
            ("pay:80", "*"),
            ("[::1]:80", "[::1]:80"),
            ("[::1]:81", "*"),
            ("[::1]", "*"),
            ("[fe80::1]:7", "[fe80::1]:*"),
            ("[FE80::1]", "[fe80::1]:*"),
            ("carts", "*"),
        ] {
            assert_eq!(
                table.find(authority).map(String::as_str),
                Some(expected),
                "{authority}"
            );
        }
    }

    #[test]
    fn without_a_wildcard_strangers_find_nothing() {
        let table = table(&["cart:*", "Pay:80"]);
        assert_eq!(table.find("cart").map(String::as_str), Some("cart:*"));
        assert_eq!(table.find("pay:80").map(String::as_str), Some("Pay:80"));
        for authority in ["pay", "cart.example", "", "*", "[", "[::1", "cart:*x:1"] {
            assert_eq!(table.find(authority), None, "{authority}");
        }
        assert_eq!(table.names().collect::<Vec<_>>(), ["cart:*", "Pay:80"]);
    }

    #[test]
    fn lower_case_is_not_copied() {
        assert!(matches!(
            ascii_lower("cart:80"),
            std::borrow::Cow::Borrowed("cart:80")
        ));
        assert_eq!(ascii_lower("CaRT"), "cart");
    }

    #[test]
    fn h2_38_accepts_what_names_a_host() {
        for text in [
            "cart",
            "Cart.example:443",
            "10.0.0.1:80",
            "[::1]",
            "[::1]:80",
            "[fe80::1%25eth0]:80",
            "a_b",
            "%2Frun%2Fapp.sock",
            "cart:0",
            "cart:65535",
        ] {
            assert_eq!(check_authority(text), Ok(()), "{text}");
        }
        assert!(check_authority(&"x".repeat(255)).is_ok());
    }

    #[test]
    fn h2_38_refuses_what_does_not() {
        for (text, expected) in [
            ("", "empty"),
            ("a/b", "host"),
            ("a b", "host"),
            ("user@cart", "user info"),
            ("cart:", "port"),
            ("cart:x", "port"),
            ("cart:+1", "port"),
            ("cart:65536", "port"),
            ("cart:000080", "port"),
            (":80", "no host"),
            ("::1", "host"),
            ("[::1", "host"),
            ("[::g]:80", "host"),
            ("[::1]x:80", "host"),
            ("[]:80", "host"),
            ("[::1%]", "host"),
            ("cart%2", "host"),
            ("cart%zz", "host"),
            ("café", "host"),
            ("a?b", "host"),
            ("a#b", "host"),
        ] {
            let error = check_authority(text).expect_err(text);
            assert!(error.reason.contains(expected), "{text}: {error}");
        }
        let long = check_authority(&"x".repeat(256)).expect_err("long");
        assert!(long.reason.contains("255"));
    }

    #[test]
    fn an_exact_path_comes_before_prefixes() {
        let routes = Routes::new(&[
            prefix("/", 1),
            prefix("/shop.Cart/", 2),
            exact("/shop.Cart/Get", 3),
            prefix("/shop.Cart/GetAll", 4),
            exact("/shop.Cart/Get", 5),
            prefix("/shop.Cart/", 6),
        ]);
        for (path, expected) in [
            ("/shop.Cart/Get", 3),
            ("/shop.Cart/GetAllNow", 4),
            ("/shop.Cart/Put", 2),
            ("/shop.Zebra/Get", 1),
            ("/", 1),
        ] {
            let found = routes.find(path).and_then(|route| route.timeout_ms);
            assert_eq!(found, Some(expected), "{path}");
        }
        assert_eq!(routes.find("*"), None);
        assert_eq!(Routes::new(&[]).find("/a"), None);
    }

    fn any_route() -> impl Strategy<Value = RouteConfig> {
        // Few letters, so that paths extend and repeat one another.
        ("/[ab]{0,5}", any::<bool>(), 1_u64..1000).prop_map(|(path, whole, timeout_ms)| {
            if whole {
                exact(&path, timeout_ms)
            } else {
                prefix(&path, timeout_ms)
            }
        })
    }

    proptest! {
        #[test]
        fn finds_what_a_scan_finds(
            routes in proptest::collection::vec(any_route(), 0..24),
            path in "/[abc]{0,7}",
        ) {
            let table = Routes::new(&routes);
            prop_assert_eq!(table.find(&path), naive(&routes, &path));
        }

        #[test]
        fn any_text_is_judged_without_fault(text in "(\\PC|[\\[\\]:%@/a1]){0,20}") {
            if check_authority(&text).is_ok() {
                prop_assert!(text.is_ascii() && !text.contains(['@', '/', ' ']));
            }
            let _ = table(&["cart:*"]).find(&text);
        }
    }
}
