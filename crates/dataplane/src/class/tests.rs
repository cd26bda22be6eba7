use std::time::Duration;

use http::header::{HeaderMap, HeaderValue};
use proptest::prelude::*;

use super::{Classifier, Interner, Moved, Newcomers, Traits, OTHER, WAITING_MAX};
use crate::attempt::RequestClass;
use crate::config::RequestClassConfig;

fn classifier(json: &str) -> Classifier {
    Classifier::new(&serde_json::from_str::<RequestClassConfig>(json).expect("a configuration"))
}

fn traits<'a>(path: &'a str, message_bytes: Option<u64>, headers: &'a HeaderMap) -> Traits<'a> {
    Traits {
        path,
        message_bytes,
        headers,
        timeout: Some(Duration::from_millis(250)),
    }
}

/// Classifier, newcomers and interner of one service.
struct Desk {
    classifier: Classifier,
    newcomers: Newcomers,
    interner: Interner,
    max: usize,
    endpoints: usize,
}

impl Desk {
    fn new(max: usize) -> Self {
        Self {
            classifier: classifier("{}"),
            newcomers: Newcomers::default(),
            interner: Interner::new(),
            max,
            endpoints: 1,
        }
    }

    fn classify(&self, path: &str) -> (RequestClass, bool) {
        let headers = HeaderMap::new();
        let traits = traits(path, Some(10), &headers);
        let set = self.interner.set();
        self.newcomers.classify(set, &self.classifier, &traits)
    }

    /// A call from its pick to its answer.
    fn call(&mut self, path: &str, served: bool) -> u32 {
        let (class, _) = self.classify(path);
        if class.unknown != 0 {
            self.newcomers.answered(class.unknown, served);
        }
        class.index
    }

    fn update(&mut self) -> Option<Moved> {
        self.interner
            .update(&self.newcomers, self.max, self.endpoints)
    }

    fn names(&self) -> Vec<String> {
        let entries = self.interner.set().entries().iter();
        entries.map(|entry| entry.names.class.to_string()).collect()
    }
}

#[test]
fn a_class_is_written_as_published() {
    let mut headers = HeaderMap::new();
    headers.insert("x-tier", HeaderValue::from_static("gold; a=b%"));
    headers.insert(
        "x-long",
        HeaderValue::from_bytes(&[b'a'; 99]).expect("a value"),
    );
    headers.insert("x-priority", HeaderValue::from_static("7"));
    let json = r#"{"headers":["x-tier","x-none","x-long"],"priority_header":"x-priority",
                   "deadline_buckets_ms":[100,1000]}"#;
    let described = classifier(json)
        .describe(&traits("/shop.Cart/Get", Some(1_024), &headers))
        .expect("a class");
    let rest = format!(
        ";x-tier=gold%3B%20a%3Db%25;x-long={};priority=7;deadline=100ms..1000ms",
        "a".repeat(64)
    );
    assert_eq!(
        *described.class,
        *format!("/shop.Cart/Get;bytes=1024..16384{rest}")
    );
    assert_eq!(*described.kind, *format!("/shop.Cart/Get{rest}"));
    assert_eq!(described.size_bytes, Some(4_096.0));
}

#[test]
fn sizes_fall_into_buckets_and_each_has_a_middle() {
    let headers = HeaderMap::new();
    let classifier = classifier("{}");
    let expected = [
        (Some(0), "..1024", Some(256.0)),
        (Some(1_023), "..1024", Some(256.0)),
        (Some(1_024), "1024..16384", Some(4_096.0)),
        (Some(262_143), "16384..262144", Some(65_536.0)),
        (Some(u64::from(u32::MAX)), "262144..", Some(1_048_576.0)),
        (None, "unknown", None),
    ];
    for (bytes, range, middle) in expected {
        let described = classifier.describe(&traits("/a.B/C", bytes, &headers));
        let described = described.expect("a class");
        assert_eq!(*described.class, *format!("/a.B/C;bytes={range}"));
        assert_eq!((&*described.kind, described.size_bytes), ("/a.B/C", middle));
    }
    let plain = Classifier::new(&RequestClassConfig {
        message_bytes_buckets: Vec::new(),
        ..RequestClassConfig::default()
    });
    let described = plain
        .describe(&traits("/a;b%", None, &headers))
        .expect("one");
    assert_eq!(*described.class, *"/a%3Bb%25");
    assert_eq!(described.class, described.kind);
}

#[test]
fn classes_are_admitted_after_an_answer_that_is_not_unimplemented() {
    let mut desk = Desk::new(256);
    assert_eq!(desk.call("/a.B/C", true), OTHER);
    assert_eq!(desk.call("/junk", false), OTHER);
    assert_eq!(
        desk.classify("/a.B/C").0.index,
        OTHER,
        "not before the update"
    );
    let before = desk.interner.set().epoch();
    assert_eq!(desk.update(), Some(Moved::default()));
    assert!(desk.interner.set().epoch() > before);
    assert_eq!(desk.names(), ["other", "/a.B/C;bytes=..1024"]);
    assert_eq!(desk.call("/a.B/C", true), 1);
    assert_eq!(desk.update(), None);
}

#[test]
fn ten_thousand_junk_methods_leave_nothing() {
    let mut desk = Desk::new(256);
    for number in 0..10_000 {
        let path = format!("/junk/{number}");
        let (class, folded) = desk.classify(&path);
        assert!(class.unknown != 0 && !folded);
        // Every other one is never answered at all.
        if number % 2 == 0 {
            desk.newcomers.answered(class.unknown, false);
        }
    }
    assert_eq!(desk.update(), None);
    let waiting = desk.newcomers.waiting.lock();
    assert!(waiting.known.len() <= WAITING_MAX && waiting.order.len() <= WAITING_MAX);
    assert_eq!(waiting.ready.len(), 0);
}

#[test]
fn a_full_set_folds_newcomers_and_gives_them_the_place_of_the_least_used() {
    let mut desk = Desk::new(3);
    for path in ["/a", "/b", "/c"] {
        desk.call(path, true);
    }
    desk.update();
    assert_eq!(
        desk.names(),
        ["other", "/a;bytes=..1024", "/b;bytes=..1024"]
    );
    let (class, folded) = desk.classify("/c");
    assert!(folded && class.index == OTHER && class.unknown == 0);
    assert_eq!(desk.newcomers.folded.load(super::Relaxed), 1);
    // Nobody calls `/a` for some minutes.
    let held = desk.classify("/a").0;
    let kept = desk.classify("/b").0;
    for _ in 0..200 {
        desk.interner.count(&[0, 0, 5], desk.max, desk.endpoints);
    }
    desk.call("/c", true);
    let moved = desk.update().expect("a change");
    assert_eq!((moved.classes, moved.kinds), (vec![1, 2], vec![1]));
    assert_eq!(
        desk.names(),
        ["other", "/b;bytes=..1024", "/c;bytes=..1024"]
    );
    assert_eq!(desk.newcomers.evicted.load(super::Relaxed), 1);
    let set = desk.interner.set();
    // Calls that were classified before have no class of their own any more.
    assert_eq!(set.place(held), (OTHER, OTHER));
    assert_eq!(set.place(kept), (OTHER, OTHER));
    assert_eq!(set.place(desk.classify("/b").0), (1, 2));
    assert_eq!(set.place(desk.classify("/c").0), (2, 1));
}

#[test]
fn more_endpoints_leave_room_for_fewer_classes() {
    let mut desk = Desk::new(256);
    for number in 0..20 {
        desk.call(&format!("/{number}"), true);
    }
    desk.update();
    assert_eq!(desk.interner.set().entries().len(), 21);
    desk.endpoints = 10_000;
    assert!(desk.update().is_some());
    assert_eq!(desk.interner.set().entries().len(), 6);
    desk.endpoints = 1_000_000;
    desk.update();
    assert_eq!(desk.names(), ["other"]);
}

#[test]
fn values_that_are_written_alike_are_one_class() {
    let mut desk = Desk::new(256);
    desk.classifier = classifier(r#"{"headers":["x-id"]}"#);
    let mut indices = Vec::new();
    for round in 0..2 {
        for end in ["1", "2"] {
            let mut headers = HeaderMap::new();
            let value = format!("{}{end}", "a".repeat(64));
            headers.insert("x-id", HeaderValue::from_str(&value).expect("a value"));
            let traits = traits("/a", None, &headers);
            let set = desk.interner.set();
            let (class, _) = desk.newcomers.classify(set, &desk.classifier, &traits);
            if round == 0 {
                desk.newcomers.answered(class.unknown, true);
            }
            indices.push(class.index);
        }
        desk.update();
    }
    assert_eq!(indices, [OTHER, OTHER, 1, 1]);
    assert_eq!(desk.names().len(), 2);
}

#[test]
fn what_tells_calls_apart_tells_keys_apart() {
    let classifier = classifier(r#"{"headers":["x-a","x-b"],"deadline_buckets_ms":[100]}"#);
    let mut seen = std::collections::HashSet::new();
    for path in ["/a", "/b"] {
        for bytes in [None, Some(1), Some(2_000)] {
            for (a, b) in [("1", "2"), ("2", "1"), ("1", "")] {
                for timeout in [None, Some(1), Some(100)] {
                    let mut headers = HeaderMap::new();
                    headers.insert("x-a", HeaderValue::from_static(a));
                    headers.insert("x-b", HeaderValue::from_static(b));
                    let mut traits = traits(path, bytes, &headers);
                    traits.timeout = timeout.map(Duration::from_millis);
                    assert!(seen.insert(classifier.key(&traits)));
                    assert_eq!(classifier.key(&traits), classifier.key(&traits));
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn a_class_is_plain_text_whatever_the_call(
        path in "\\PC{0,300}",
        value in proptest::collection::vec(0x20_u8..=0x7e, 0..100),
        bytes: Option<u32>,
    ) {
        let mut headers = HeaderMap::new();
        headers.insert("x-a", HeaderValue::from_bytes(&value).expect("a value"));
        let classifier = classifier(r#"{"headers":["x-a"]}"#);
        let described = classifier.describe(&traits(&path, bytes.map(u64::from), &headers));
        prop_assert_eq!(described.is_some(), path.len() <= 256);
        if let Some(described) = described {
            prop_assert!(described.class.bytes().all(|byte| (b'!'..=b'~').contains(&byte)));
            let parts: Vec<_> = described.class.split(';').collect();
            prop_assert_eq!(parts.len(), 3);
            prop_assert!(parts[1].starts_with("bytes=") && parts[2].starts_with("x-a="));
            prop_assert!(parts[2].len() <= 4 + 64);
        }
    }
}
